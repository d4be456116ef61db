"""Checks commit titles: `area: verb object`, at most 65 characters, imperative, no semicolon.

    python tools/commit_titles.py                 # the commits since FIRST
    python tools/commit_titles.py --message FILE  # a message, as a commit-msg hook

History before FIRST is not checked.
"""

import argparse
import re
import subprocess
import sys

FIRST = "2e8f552142ef"
LENGTH = 65
# Words that start a description instead of an instruction
DESCRIPTIONS = r"(a|an|the|what|who|where|when|how|no|all|each|every|one|two|some|more|less|new)\b"
# Imperative verbs whose endings look like other forms of a verb
IMPERATIVE = {
    "address",
    "bring",
    "embed",
    "need",
    "pass",
    "process",
    "string",
    "speed",
    "shed",
    "feed",
}


def fault(title):
    """Returns the fault of a title, or None."""
    if len(title) > LENGTH:
        return f"{len(title)} characters, but at most {LENGTH} are allowed"
    if ";" in title:
        return "a semicolon: make two commits or use the body"
    if title.startswith(("Merge ", "Revert ")):
        return None
    area, colon, text = title.partition(": ")
    text = text if colon and re.fullmatch(r"[\w./, -]+", area) and len(area) < 30 else title
    verb = text.split(" ")[0].lower()
    if re.match(DESCRIPTIONS, text, re.I):
        return f"'{text.split(' ')[0]}' is not a verb; start with Fix, Add, Remove, Support, ..."
    if verb not in IMPERATIVE and re.search(r"(ing|ed|[^s]s)$", verb):
        return f"'{verb}' is not imperative: start with Fix, Add, Remove, Support, ..."
    return None


def titles():
    known = subprocess.run(["git", "cat-file", "-e", FIRST], capture_output=True).returncode == 0
    if not known:  # a shallow clone or an archive
        return []
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{FIRST}..HEAD"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.partition(" ")[::2] for line in lines]


def main():
    parser = argparse.ArgumentParser(description="Titles of commits.")
    parser.add_argument("--message", help="a file with a commit message")
    options = parser.parse_args()
    if options.message:
        with open(options.message) as file:
            checked = [("message", file.readline().rstrip("\n"))]
    else:
        checked = titles()
    faults = [(name, title, fault(title)) for name, title in checked if fault(title)]
    for name, title, reason in faults:
        print(f"{name} {title!r}: {reason}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

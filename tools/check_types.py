"""Runs type checkers on the installed package: the examples, and a program that overrides what
users override, are without errors (mypy); and how much of what is public has types that they know
(basedpyright).

    cd examples && python ../tools/check_types.py

Both find packages as the interpreter that runs it does.
"""

import json
import os
import subprocess
import sys

# Percent of public names whose types are known: raise it when there are more.
KNOWN = 100.0

EXAMPLES = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "../build/mypy", "."]
EXAMPLES += ["../tests/programs/typed_user.py"]
PACKAGE = ["--verifytypes", "mpgluon", "--ignoreexternal", "--outputjson"]


def main():
    """Runs both, and ends with an error where one finds something."""
    examples = subprocess.Popen(EXAMPLES)
    # With --verifytypes it looks for packages where the PATH's Python does.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    checker = [sys.executable, "-m", "basedpyright", *PACKAGE]
    ran = subprocess.run(
        checker, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}
    )
    report = json.loads(ran.stdout)["typeCompleteness"]
    known = int(1000 * report["completenessScore"]) / 10
    print(f"types: those of {known} % of the public names are known")
    if known < KNOWN:
        for symbol in report["symbols"]:
            if symbol["isExported"] and not symbol["isTypeKnown"]:
                for found in symbol["diagnostics"]:
                    print(f"{symbol['name']}: {found['message']}")
        raise SystemExit(f"types: {KNOWN} % were known before (KNOWN in tools/check_types.py)")
    if known > KNOWN:
        print(f"types: raise KNOWN in tools/check_types.py from {KNOWN} to {known}")
    raise SystemExit(examples.wait())


if __name__ == "__main__":
    main()

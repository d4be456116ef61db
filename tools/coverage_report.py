"""Reports the covered lines of the Python package, the C core and the CPU kernels after the tests
of `make coverage`.

    .venv-asan/bin/python tools/coverage_report.py build/coverage

Exits with an error if a share is below LEAST percent. Writes missing.txt to the folder, with the
uncovered lines of the files that have the most.
"""

import collections
import glob
import json
import os
import subprocess
import sys

LEAST = 90.0
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ("csrc", "kernels/cpu")
# The folder of the package, whose modules are measured.
PACKAGE = "mpgluon"


def python_lines(folder):
    """Returns {file: (number of covered lines, uncovered line numbers)} of the package."""
    import coverage

    data = coverage.Coverage(data_file=os.path.join(folder, "data"))
    data.load()
    path = os.path.join(folder, "python.json")
    data.json_report(outfile=path, ignore_errors=True)
    with open(path) as file:
        files = json.load(file)["files"]
    found = {}
    for name, about in files.items():
        if f"/{PACKAGE}/" in f"/{name}":
            short = PACKAGE + "/" + f"/{name}".rsplit(f"/{PACKAGE}/", 1)[1]
            found[short] = (len(about["executed_lines"]), about["missing_lines"])
    return found


def c_lines(folder):
    """Returns {file: (number of covered lines, uncovered line numbers)} of the C files, from gcov.
    A line of a header is counted once, even if several files include it."""
    (objects,) = glob.glob(os.path.join(ROOT, "build", "address-undefined---coverage-*"))
    path = os.path.join(folder, "c.json")
    command = [sys.executable, "-m", "gcovr", "-r", ROOT, "--json", path, objects]
    command += ["-j", str(len(os.sched_getaffinity(0))), "--gcov-ignore-errors=source_not_found"]
    command += ["--gcov-ignore-parse-errors=all"]
    command += ["--merge-mode-functions=separate"]
    for layer in LAYERS:
        command += ["--filter", os.path.join(ROOT, layer) + "/"]
    subprocess.run(command, check=True, cwd=ROOT)
    with open(path) as file:
        files = json.load(file)["files"]
    found = {}
    for about in files:
        counts = collections.Counter()
        for line in about["lines"]:
            counts[line["line_number"]] += line["count"]
        run = sum(count > 0 for count in counts.values())
        found[about["file"]] = (run, sorted(n for n, count in counts.items() if not count))
    return found


def share(files):
    run = sum(lines for lines, _ in files.values())
    return 100 * run / max(1, run + sum(len(missing) for _, missing in files.values()))


def main():
    folder = sys.argv[1]
    c_files = c_lines(folder)
    parts = {PACKAGE: python_lines(folder)}
    for layer in LAYERS:
        parts[layer] = {name: of for name, of in c_files.items() if name.startswith(layer + "/")}
    everything = [(name, *of) for files in parts.values() for name, of in files.items()]
    with open(os.path.join(folder, "missing.txt"), "w") as file:
        for name, run, missing in sorted(everything, key=lambda entry: -len(entry[2])):
            file.write(f"{name}: {run} run, {len(missing)} not: {missing}\n")
    for name, files in parts.items():
        print(f"{name}: {share(files):.1f} % of the lines of {len(files)} files were run")
    low = [name for name, files in parts.items() if share(files) < LEAST]
    if low:
        raise SystemExit(f"coverage: below {LEAST:.0f} %: {', '.join(low)}")


if __name__ == "__main__":
    main()

"""Runs type checkers on the installed package: mypy on the examples and on a program that overrides
the classes that users override, and basedpyright for the share of public names with known types.

    cd examples && python ../tools/check_types.py

Both find packages in the same way as the interpreter that runs this script.
"""

import json
import os
import subprocess
import sys

# Percentage of public names with known types; raise it when the share grows.
KNOWN = 100.0

EXAMPLES = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "../build/mypy", "."]
EXAMPLES += ["../tests/programs/typed_user.py"]
PACKAGE = ["--verifytypes", "mpgluon", "--ignoreexternal", "--outputjson"]


def main():
    """Runs both; exits with an error if one reports a problem."""
    examples = subprocess.Popen(EXAMPLES)
    # With --verifytypes, basedpyright uses the packages of the first Python on the PATH.
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

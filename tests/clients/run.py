"""Runs packages written for MXNet on mpgluon under the name mxnet.

Installs them into separate folders, runs the flows of flows.py and prints a table. Requires a
package index.

    python tests/clients/run.py FOLDER [FLOW ...]
"""

import ast
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FLOWS = os.path.join(HERE, "flows.py")
SECONDS = 600  # per flow

# Packages by installation folder, without their declared dependencies: those would be MXNet itself
# and library versions that current Python versions lack.
FOLDERS = {
    "packages": "gluoncv==0.10.5.post0 gluoncv2==0.0.64 gluonnlp==0.10.0 gluonts==0.8.1 "
    "sockeye==2.3.22 mxfusion==0.3.1 mxboard==0.1.0 keras-mxnet==2.2.4.3 bert_embedding==1.0.1 "
    "gluonfr==1.0.2 d2lzh==1.0.0",
    "libraries": "requests urllib3<3 idna certifi charset_normalizer portalocker yacs autocfg "
    "pyyaml six pytz python-dateutil<3 pandas opencv-python-headless tqdm scipy scikit-learn "
    "joblib cloudpickle threadpoolctl narwhals pydantic<2 typing_extensions toolz holidays<0.12 "
    "convertdate korean_lunar_calendar sacrebleu==1.4.14 keras_applications "
    "keras_preprocessing h5py ipython<9.11 decorator traitlets matplotlib-inline stack_data "
    "pygments prompt_toolkit wcwidth ipython_pygments_lexers pure_eval executing asttokens",
    "older": "numpy==1.26.4 pandas==1.5.3 protobuf==3.20.3",
}
# Packages that need older libraries: GluonTS needs an older pandas, MXBoard (and Sockeye, which
# imports it) older NumPy and protobuf.
OLDER = ("gluonts", "mxboard", "sockeye")


def install(folder):
    """Installs missing packages. pip before 24.1 is needed to read the metadata of old packages."""
    tool = os.path.join(folder, "pip")
    if not os.path.exists(tool):
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", tool, "pip<24.1"]
        subprocess.run(command, check=True)
    for name, packages in FOLDERS.items():
        target = os.path.join(folder, name)
        if os.path.exists(target):
            continue
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        environment = {**os.environ, "PYTHONPATH": tool}
        command += ["--upgrade", "--target", target + ".new", *packages.split()]
        subprocess.run(command, check=True, env=environment)
        os.rename(target + ".new", target)


def flows():
    """Returns the flows as pairs of package and function name."""
    with open(FLOWS) as file:
        tree = ast.parse(file.read())
    return [
        (node.decorator_list[0].args[0].value, node.name)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.decorator_list
        and isinstance(node.decorator_list[0], ast.Call)
    ]


def run(folder, package, name):
    """Runs a flow; returns True on success, and its output."""
    parts = ["older"] * (package in OLDER) + ["packages", "libraries"]
    paths = [os.path.join(folder, part) for part in parts]
    if os.environ.get("PYTHONPATH"):
        paths.insert(0, os.environ["PYTHONPATH"])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        "MPLBACKEND": "agg",
    }
    command = [sys.executable, "-W", "ignore", "-m", "mpgluon.as_mxnet", "--numpy-names"]
    try:
        ended = subprocess.run(
            [*command, FLOWS, name],
            env=environment,
            cwd=folder,
            timeout=SECONDS,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        return False, f"not done after {SECONDS} s"
    said = ended.stdout.strip().splitlines() or [""]
    ok = next((line for line in said if line.startswith("OK ")), None)
    return ended.returncode == 0 and ok is not None, ok or said[-1]


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    os.makedirs(folder, exist_ok=True)
    install(folder)
    failures = 0
    for package, name in flows():
        if wanted and name not in wanted:
            continue
        passed, said = run(folder, package, name)
        failures += not passed
        print(
            f"| {package} | {name} | {'passes' if passed else 'FAILS'} | {said[:300]} |", flush=True
        )
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()

"""Programs on several ranks, started by mpirun, where MPI is."""

import os
import shutil
import subprocess
import sys

from support.processes import script_environment


def _launcher():
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    return beside if os.path.exists(beside) else shutil.which("mpirun")


def _missing():
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return "mpi4py is not installed"
    return None if _launcher() else "there is no mpirun"


MISSING = _missing()  # why programs can't be run; None: they can


def _options():
    version = subprocess.run([_launcher(), "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        return []
    return ["--oversubscribe", "--bind-to", "none"] + (
        ["--allow-run-as-root"] if os.geteuid() == 0 else []
    )


def run(count, script, *arguments, timeout=100, **more):
    """Runs a Python file, with what lies beside it, on so many ranks; returns the process. Count 1:
    without mpirun."""
    command = [sys.executable, script, *arguments]
    if count > 1:
        command = [_launcher(), *_options(), "-n", str(count), *command]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=script_environment(MPGLUON_CPU_THREADS="1", **more),
    )

"""Runs programs on several ranks with mpirun, if MPI is installed."""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from support.processes import script_environment

# Working directory of the programs. In the repository root, `python -m` would import the package
# from its sources.
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(TESTS, "ranks", "scripts")


def _launcher():
    if "MPGLUON_TEST_MPIRUN" in os.environ:  # must match the library in MPI4PY_LIBMPI
        return os.environ["MPGLUON_TEST_MPIRUN"]
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    return beside if os.path.exists(beside) else shutil.which("mpirun")


def _missing():
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return "mpi4py is not installed"
    return None if _launcher() else "there is no mpirun"


MISSING = _missing()  # reason why programs cannot run, or None if they can


def _options():
    version = subprocess.run([_launcher(), "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and not _launcher().endswith("prterun"):
        return []
    return ["--oversubscribe", "--bind-to", "none"] + (
        ["--allow-run-as-root"] if os.geteuid() == 0 else []
    )


def _command(count, script, arguments):
    command = [sys.executable, script, *arguments]
    return command if count == 1 else [_launcher(), *_options(), "-n", str(count), *command]


def _settings(more):
    return {"text": True, "cwd": TESTS, "env": script_environment(MPGLUON_CPU_THREADS="1", **more)}


def run(count, script, *arguments, timeout=100, **more):
    """Runs a Python file on `count` ranks, without mpirun if `count` is 1. `more` sets environment
    variables. Returns the completed process."""
    return subprocess.run(
        _command(count, script, arguments), capture_output=True, timeout=timeout, **_settings(more)
    )


def told(count, script, how, launched=run, **settings):
    """Returns {rank: the value printed as "told"} and the completed process."""
    done = launched(count, script, how, **{"MPGLUON_RANKS_TIMEOUT": "20", **settings})
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    return {line["rank"]: line["told"] for line in lines}, done


def start(count, script, *arguments, **more):
    """Starts a program like `run`, without waiting. Discards its output. Returns the process."""
    return subprocess.Popen(
        _command(count, script, arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **_settings(more),
    )


def run_to_the_end(count, script, *arguments, timeout=100, **more):
    """Same as `run`, but kills a launcher that keeps running without ranks. Open MPI's launcher
    sometimes hangs if a rank stops or dies during startup."""
    launcher = subprocess.Popen(
        _command(count, script, arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **_settings(more),
    )
    begin = seen = time.monotonic()  # seen: last time that ranks ran or could be starting
    while True:
        try:
            found = launcher.communicate(timeout=1)
            return subprocess.CompletedProcess(launcher.args, launcher.returncode, *found)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            ranks = set(pids_of(" ".join([script, *arguments]))) - {launcher.pid}
            if ranks or now < begin + 20:
                seen = now
            if now > seen + 10:
                launcher.kill()
            elif now > begin + timeout:
                end_all(" ".join([script, *arguments]))
                raise


def end_all(text):
    """Kills all processes whose command lines contain `text`."""
    for pid in pids_of(text):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_of(text):
    """Returns {pid: command line} of running processes whose command lines contain `text`."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        if text in command:
            found[int(path.split("/")[2])] = command
    return found


def processes_of(text):
    """Returns the command lines of running processes that contain `text`."""
    return list(pids_of(text).values())

"""Child processes of a test: output, exit status, and op libraries built by the C compiler."""

import os
import shlex
import subprocess
import sys
import textwrap

import mpgluon
from support.paths import TESTS

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(mpgluon.__file__)))


def environment(base=None, **settings):
    """Returns the environment (or `base`) with added settings.

    The process finds the tested package and the test modules from any directory (PYTHONSAFEPATH).
    """
    paths = [TESTS, os.environ.get("PYTHONPATH"), PACKAGE]
    return {
        **(os.environ if base is None else base),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **settings,
    }


def script_environment(**settings):
    """Returns the environment of a process that runs a script with its neighboring modules."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return environment(base, **settings)


def ended(code, timeout=120, base=None, **settings):
    """Runs code in a process; returns its exit status and both outputs."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(base, **settings)
    )


def ran(script, *arguments, cwd=None, timeout=280, **settings):
    """Runs a script in a process that can import its neighboring modules."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        env=script_environment(**settings),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def finished(code, timeout=120, base=None, **settings):
    """Runs code in a process, which must succeed."""
    done = ended(code, timeout, base, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def output_of(code, timeout=120, base=None, **settings):
    """Returns the output of the code, which must succeed."""
    return finished(code, timeout, base, **settings).stdout


LIBRARY = os.path.join(TESTS, "c", "library.c")


def compiled(target, *flags, source=LIBRARY, compiler=None):
    """Compiles a source into an op library and returns its path."""
    command = [
        *shlex.split(compiler or os.environ.get("CC", "cc")),
        *["-shared", "-fPIC", "-O2", "-I" + mpgluon.library.get_include()],
        *[*flags, "-o", str(target), str(source), "-lm"],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(target)

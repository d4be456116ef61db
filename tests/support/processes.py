"""Processes of a test: what Python code prints, how it ends, and libraries that the C compiler
makes."""

import os
import shlex
import subprocess
import sys
import textwrap

import mpgluon
from support.paths import TESTS

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(mpgluon.__file__)))


def environment(base=None, **settings):
    """The environment (or `base`) with more settings, in which a process finds the package that is
    tested and the modules of the tests, wherever it starts (PYTHONSAFEPATH)."""
    paths = [TESTS, os.environ.get("PYTHONPATH"), PACKAGE]
    return {
        **(os.environ if base is None else base),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **settings,
    }


def script_environment(**settings):
    """The same for a process that runs a script, with what lies beside it."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return environment(base, **settings)


def ended(code, timeout=120, base=None, **settings):
    """A process that has run the code; its exit status, and what it wrote to both outputs."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(base, **settings)
    )


def ran(script, *arguments, cwd=None, timeout=280, **settings):
    """A process that has run a script, with what lies beside it."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        env=script_environment(**settings),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def finished(code, timeout=120, base=None, **settings):
    """The same without an error."""
    done = ended(code, timeout, base, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def output_of(code, timeout=120, base=None, **settings):
    """The output of the code, which runs without an error."""
    return finished(code, timeout, base, **settings).stdout


LIBRARY = os.path.join(TESTS, "c", "library.c")


def compiled(target, *flags, source=LIBRARY, compiler=None):
    """The path of the library of ops that the compiler makes of a source."""
    command = [
        *shlex.split(compiler or os.environ.get("CC", "cc")),
        *["-shared", "-fPIC", "-O2", "-I" + mpgluon.library.get_include()],
        *[*flags, "-o", str(target), str(source), "-lm"],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(target)

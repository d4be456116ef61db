"""Tests of tools/native_build.py."""

import contextlib
import importlib.util
import os
import pty
import shutil
import subprocess
import sys
import tarfile
import textwrap

import pytest

from support.paths import ROOT


@pytest.fixture
def tools(monkeypatch):
    spec = importlib.util.spec_from_file_location(
        "mpgluon_build", os.path.join(ROOT, "tools", "native_build.py")
    )
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for name in ("MPGLUON_CUDA", "NVCC", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    there = found.glob.glob
    monkeypatch.setattr(
        found.glob,
        "glob",
        lambda pattern: [] if pattern.startswith("/usr/local/cuda") else there(pattern),
    )
    which = found.shutil.which
    monkeypatch.setattr(
        found.shutil,
        "which",
        lambda name: None if name.startswith("/usr/local/cuda") else which(name),
    )
    return found


def compiler(folder):
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_newest_nvcc_of_wheels_is_found_first(tools, monkeypatch, tmp_path):
    assert tools.find_nvcc() is None
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    older = compiler(tmp_path / "nvidia" / "cu9")
    assert tools.find_nvcc() == older
    newer = compiler(tmp_path / "nvidia" / "cu13")
    assert tools.find_nvcc() == newer
    home = compiler(tmp_path / "home")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert tools.find_nvcc() == home
    monkeypatch.setenv("NVCC", older)
    assert tools.find_nvcc() == older
    monkeypatch.setenv("MPGLUON_CUDA", "0")
    assert tools.find_nvcc() is None


def test_required_but_missing_nvcc_raises_with_a_remedy(tools, monkeypatch):
    monkeypatch.setenv("MPGLUON_CUDA", "1")
    with pytest.raises(
        SystemExit,
        match="nvcc was not found: put it on the PATH, name it with NVCC or CUDA_HOME, or pip "
        "install nvidia-cuda-nvcc",
    ):
        tools.find_nvcc()


def test_missing_nvcc_raises_before_compilation(tmp_path):
    program = f"""
        import concurrent.futures, runpy, shutil, sys
        shutil.which = lambda *place, **more: None
        concurrent.futures.ThreadPoolExecutor = None  # which compiles
        sys.argv = ["setup.py", "build_ext", "-b", {str(tmp_path)!r}, "-t", {str(tmp_path)!r}]
        runpy.run_path("setup.py", run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=dict(os.environ, MPGLUON_CUDA="1", MPGLUON_SANITIZE=""),
        capture_output=True,
        text=True,
    )
    assert done.returncode and "MPGLUON_CUDA=1, but nvcc was not found" in done.stderr


@pytest.mark.slow
def test_source_distribution_has_every_file(tmp_path):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        there = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    missing = {name for name in tracked.stdout.split() if not name.startswith(".")} - there
    assert not missing


def test_objects_are_rebuilt_if_their_inputs_changed(tools, monkeypatch, tmp_path):
    """A package's headers are compared by content, because pip may install them elsewhere, and the
    project's files by time."""
    monkeypatch.setattr(tools, "ROOT", str(tmp_path))
    compiled = []
    monkeypatch.setattr(
        tools,
        "run",
        lambda command: (
            compiled.append(command) or subprocess.run(command, cwd=tmp_path).returncode == 0
        ),
    )
    monkeypatch.setenv("PATH", os.defpath)
    (tmp_path / "own.h").write_text("#define OWN 1\n")
    (tmp_path / "a.c").write_text(
        '#include "own.h"\n#include <package.h>\nint a = OWN + PACKAGE;\n'
    )

    def build(package, *flags):
        tools.digest.cache_clear()
        compiled.clear()
        tools.compile_all(
            [("a.c", str(tmp_path / "a.o"), ["cc", *flags, "-isystem", str(tmp_path / package)])]
        )
        return len(compiled)

    def header(package, text):
        (tmp_path / package).mkdir()
        (tmp_path / package / "package.h").write_text(text)

    header("one", "#define PACKAGE 1\n")
    assert (build("one"), build("one")) == (1, 0)
    header("same", "#define PACKAGE 1\n")
    shutil.rmtree(tmp_path / "one")
    assert build("same") == 0
    header("other", "#define PACKAGE 2\n")
    assert (build("other"), build("other")) == (1, 0)
    assert (build("other", "-DMORE"), build("other", "-DMORE")) == (1, 0)
    later = os.path.getmtime(tmp_path / "a.o") + 10
    os.utime(tmp_path / "own.h", (later, later))
    assert build("other", "-DMORE") == 1


def test_warnings_are_errors_only_on_request(tools, monkeypatch):
    monkeypatch.delenv("MPGLUON_WERROR", raising=False)
    assert not any("error" in flag.lower() for flag in tools.warnings() + tools.nvcc_warnings())
    monkeypatch.setenv("MPGLUON_WERROR", "1")
    assert "-Werror" in tools.warnings() and "--Werror=all-warnings" in tools.nvcc_warnings()


def compiled_by(command):
    """Returns the assembly of functions that clear and copy a struct of 144 bytes; None if the
    compiler is not installed."""
    source = (
        "struct s { char bytes[144]; }; void clear(struct s *a) { *a = (struct s){0}; } void "
        "copy(struct s *a, const struct s *b) { *a = *b; }"
    )
    if not shutil.which(command[0]):
        return None
    return subprocess.run(
        [*command, "-O2", "-S", "-x", "c", "-", "-o", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("compiler", ["gcc", "cc", "clang"])
def test_structs_are_cleared_and_copied_without_rep_instructions(compiler):
    if compiled_by([compiler]) is None:
        pytest.skip(f"{compiler} is not installed")
    spec = importlib.util.spec_from_file_location(
        "mpgluon_build", os.path.join(ROOT, "tools", "native_build.py")
    )
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    assert "rep" not in compiled_by([compiler, *tools.struct_flags(compiler)]).split()


def test_removed_modules_are_not_installed(tmp_path):
    package = tmp_path / "mpgluon"
    (package / "metric").mkdir(parents=True)
    for name in ("metric.py", "metric/gone.py"):
        (package / name).write_text("")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    there = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert "metric/__init__.py" in there and not {"metric.py", "metric/gone.py"} & there


COMPILES = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("tools", sys.argv[1])
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
tools.ROOT = sys.argv[2]
tools.compile_all([(f"{n}.c", f"{sys.argv[2]}/{n}.o", ["cc"]) for n in range(3)])
"""


@pytest.fixture
def compiles(tmp_path):
    """Returns a command that compiles three files."""
    for number in range(3):
        (tmp_path / f"{number}.c").write_text(f"int a{number};\n")
    native_build = os.path.join(ROOT, "tools", "native_build.py")
    return [sys.executable, "-c", COMPILES, native_build, str(tmp_path)]


def test_progress_is_shown_on_the_terminal(compiles):
    """Also with redirected standard output, which pip captures."""
    process, terminal = pty.fork()
    if process == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.execv(compiles[0], compiles)
    shown = b""
    with contextlib.suppress(OSError):  # raised at the end of output
        while more := os.read(terminal, 1000):
            shown += more
    os.close(terminal)
    assert os.waitpid(process, 0)[1] == 0
    assert b"1 of 3 files" in shown and b"3 of 3 files are compiled" in shown


def test_progress_without_a_terminal_goes_to_stdout(compiles):
    done = subprocess.run(compiles, capture_output=True, text=True, start_new_session=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "mpgluon: 3 of 3 files are compiled"

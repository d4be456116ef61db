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
        lambda pattern, **more: (
            [] if pattern.startswith("/usr/local/cuda") else there(pattern, **more)
        ),
    )
    which = found.shutil.which
    monkeypatch.setattr(
        found.shutil,
        "which",
        lambda name, **more: None if name.startswith("/usr/local/cuda") else which(name, **more),
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
        import runpy, shutil, sys
        shutil.which = lambda *place, **more: None
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


def test_headers_of_packages_that_move_cause_no_rebuild(tools, monkeypatch, tmp_path):
    """pip unpacks a package that a build requires into a new folder each time."""
    monkeypatch.setattr(tools, "ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    (tmp_path / "a.c").write_text("#include <package.h>\nint a = PACKAGE;\n")
    target = tmp_path / "a.o"

    def build(folder, text):
        """Returns whether it compiles when the package is in this folder."""
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "package.h").write_text(text)
        copies = tools.package_headers("package", str(tmp_path / folder))
        before = target.stat().st_mtime_ns if target.exists() else None
        job = ("a.c", str(target), ["cc", "-isystem", copies])
        tools.compile_all([job], str(tmp_path / "objects with spaces"))
        return target.stat().st_mtime_ns != before

    assert build("one", "#define PACKAGE 1\n")
    assert not build("two", "#define PACKAGE 1\n")
    assert build("three", "#define PACKAGE 2\n")


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
tools.ROOT = folder = sys.argv[2]
tools.compile_all([(f"{n}.c", f"{folder}/{n}.o", ["cc"]) for n in range(3)], folder)
"""


def compiling(tmp_path, text):
    """Returns a command that compiles three files."""
    for number in range(3):
        (tmp_path / f"{number}.c").write_text(text)
    native_build = os.path.join(ROOT, "tools", "native_build.py")
    return [sys.executable, "-c", COMPILES, native_build, str(tmp_path)]


def on_a_terminal(command):
    """Runs a command whose standard output is a pipe, as under pip. Returns its status and the
    texts on the terminal and in the pipe."""
    reading, writing = os.pipe()
    process, terminal = pty.fork()
    if process == 0:
        os.dup2(writing, 1)
        os.execv(command[0], command)
    os.close(writing)
    shown = b""
    with contextlib.suppress(OSError):  # raised at the end of output
        while more := os.read(terminal, 1000):
            shown += more
    os.close(terminal)
    with open(reading, encoding="utf-8") as pipe:
        return os.waitpid(process, 0)[1], shown.decode(), pipe.read()


def test_progress_is_shown_on_the_terminal_under_pip(tmp_path):
    status, shown, captured = on_a_terminal(compiling(tmp_path, "int a;\n"))
    assert status == 0 and not captured
    assert "mpgluon: 3 of 3 files are compiled" in shown


def test_compiler_messages_are_in_the_captured_output(tmp_path):
    command = compiling(tmp_path, "int a = unknown;\n")
    status, _, captured = on_a_terminal(command)
    assert status and "unknown" in captured and "0.c" in captured
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert done.returncode and "unknown" in done.stdout
    assert "mpgluon: the compiler failed" in done.stderr


def test_missing_ninja_raises_with_a_remedy(tools, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SystemExit, match="pip install ninja"):
        tools.find_ninja()

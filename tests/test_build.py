"""What kernels/build.py looks for."""

import importlib.util
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def tools(monkeypatch):
    spec = importlib.util.spec_from_file_location("mpgluon_build", os.path.join(ROOT, "kernels", "build.py"))
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for name in ("MPGLUON_CUDA", "NVCC", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    there = found.glob.glob
    monkeypatch.setattr(found.glob, "glob", lambda pattern: [] if pattern.startswith("/usr/local/cuda") else there(pattern))
    which = found.shutil.which
    monkeypatch.setattr(found.shutil, "which", lambda name: None if name.startswith("/usr/local/cuda") else which(name))
    return found


def compiler(folder):
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_nvcc_of_wheels_is_found_the_newest_first(tools, monkeypatch, tmp_path):
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


def test_where_it_must_be_there_the_error_says_what_to_do(tools, monkeypatch):
    monkeypatch.setenv("MPGLUON_CUDA", "1")
    with pytest.raises(SystemExit, match="nvcc was not found: put it on the PATH, name it with NVCC or CUDA_HOME, or pip install nvidia-cuda-nvcc"):
        tools.find_nvcc()

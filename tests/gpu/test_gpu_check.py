"""`make gpu-check` and `make gpu-check-suites` on the stand-in: their reports, that only a failed
build stops the other parts, and the installation of wheels."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile

import pytest

import mpgluon
from programs.gpu_parts import package
from support.paths import ROOT, TESTS
from support.stand_in import STAND_IN, needs_stand_in

pytest.importorskip("torch", reason="what is checked is held against PyTorch")
pytestmark = needs_stand_in
PROGRAM = os.path.join(TESTS, "programs", "gpu_check.py")
gpu_wheel = package.tool("gpu_wheel")


def command(folder, do, *options):
    work = ["--work", str(folder.parent / (folder.name + "-work"))]
    return [sys.executable, PROGRAM, str(folder), "--do", do, "--tiny", "--workers", "1", *work,
            *options]  # fmt: skip


def check(folder, do, *options, **environment):
    settings = dict(os.environ, MPGLUON_CUDA_LIBRARY=os.path.abspath(STAND_IN), **environment)
    done = subprocess.run(
        command(folder, do, *options), capture_output=True, text=True, env=settings
    )
    name = {"check": "gpu-check", "suites": "gpu-suites"}[do]
    assert sorted(os.listdir(folder)) == [f"{name}-logs.tar.xz", f"{name}.json", f"{name}.md"], (
        done.stdout + done.stderr
    )
    with open(folder / f"{name}.json") as f:
        return done, json.load(f), (folder / f"{name}.md").read_text()


def held(found):
    return {part: told["held"] for part, told in found["parts"].items()}


def test_failing_part_does_not_stop_other_parts(tmp_path):
    done, found, table = check(
        tmp_path / "out", "check", "--parts", "build,add,pipeline", HOSTCUDA_MEMORY="100000"
    )
    assert done.returncode == 1
    assert held(found) == {"build": True, "pipeline": False, "add": True}, done.stdout
    assert "is out of memory" in found["parts"]["pipeline"]["told"] and "## pipeline" in table
    assert found["cases"]["add"]["mpgluon"]["seconds"] > 0
    with tarfile.open(tmp_path / "out" / "gpu-check-logs.tar.xz") as logs:
        assert {"add.log", "pipeline.log", "info.log"} <= set(logs.getnames())
    assert "cuBLASLt" in table and "2 of 3 parts held" in table


def test_check_reports_families_and_products(tmp_path):
    done, found, table = check(tmp_path / "out", "check", "--parts", "build,families,product")
    assert done.returncode == 0, done.stdout
    assert found["suites"]["families"]["passed"] >= 1
    assert "| gpu/test_gpu_families.py | 1 | " in table and "3 of 3 parts held" in table
    assert found["tiny"] and "the figures mean nothing" in table


def test_suites_report_each_test_file(tmp_path):
    tests = "gpu/test_gpu_nothing.py gpu/test_gpu.py"
    done, found, table = check(tmp_path / "out", "suites", "--tests", tests)
    assert done.returncode == 1
    # compute-sanitizer needs a card and is skipped
    assert held(found) == {
        "build": True,
        "memcheck": True,
        "racecheck": True,
        "gpu_nothing-1": False,
        "gpu-1": True,
        "gpu_nothing-4": False,
        "gpu-4": True,
    }, done.stdout
    assert found["suites"]["gpu-4"]["passed"] > 10 and found["suites"]["gpu-4"]["gpus"] == 4
    assert "| gpu/test_gpu.py | 4 | " in table and "5 of 7 parts held" in table


def test_parts_without_time_left_fail_at_once(tmp_path):
    done, found, _ = check(tmp_path / "out", "check", "--parts", "add,gpt", "--minutes", "0")
    assert done.returncode == 1 and held(found) == {"gpt": False, "add": False}
    assert "there was no time left" in found["parts"]["gpt"]["told"]


def test_failed_build_stops_the_check(tmp_path):
    done, found, table = check(tmp_path / "out", "check", HOSTCUDA_DEVICES="0")
    assert done.returncode == 1 and held(found) == {"build": False}
    assert "gpu(0) cannot be used" in found["parts"]["build"]["told"] and "0 of 1 parts" in table


def test_terminated_check_keeps_its_results(tmp_path):
    process = subprocess.Popen(
        command(tmp_path / "out", "check", "--parts", "build,add,recorded,gpt"),
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, MPGLUON_CUDA_LIBRARY=os.path.abspath(STAND_IN)),
    )
    assert process.stdout.readline().startswith("build: held")
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    found = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    assert found["parts"]["build"]["held"] and "recorded" not in found["parts"]
    assert "parts held." in (tmp_path / "out" / "gpu-check.md").read_text()
    assert (tmp_path / "out" / "gpu-check-logs.tar.xz").exists()


# --- Wheels ---------------------------------------------------------------------------------------

OWN = "cp{}{}".format(*sys.version_info)
NAME = f"mpgluon-0-{OWN}-{OWN}-linux_{os.uname().machine}.whl"


def make_wheel(path, files):
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr("mpgluon-0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
        wheel.writestr("mpgluon-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        metadata = "Metadata-Version: 2.1\nName: mpgluon\nVersion: 0\n"
        wheel.writestr("mpgluon-0.dist-info/METADATA", metadata)


def made(tmp_path, files):
    """Returns a wheel as tools/gpu_wheel.py writes it."""
    raw, folder = tmp_path / "raw", tmp_path / "wheels"
    raw.mkdir()
    folder.mkdir()
    make_wheel(raw / NAME, files)
    return gpu_wheel.repacked(str(raw / NAME), str(folder))


def test_check_installs_a_wheel_and_only_missing_packages(tmp_path):
    own = os.path.dirname(mpgluon.__file__)
    files = {"mpgluon/_cuda.so": b""}
    for folder, _, names in os.walk(own):
        for name in names:
            if name.endswith((".py", ".pyi", ".so")) and name != "_cuda.so":
                path = os.path.join(folder, name)
                with open(path, "rb") as f:
                    files["mpgluon/" + os.path.relpath(path, own)] = f.read()
    core = {name: files.pop(name) for name in list(files) if "/_core." in name}  # slow to compress
    wheel = made(tmp_path, files)
    with zipfile.ZipFile(wheel, "a") as archive:
        for name, content in core.items():
            archive.writestr(name, content)
    os.mkdir(tmp_path / "wheels" / "packages")
    for name in ("sortedcontainers", "mpgluon_carried"):
        make_wheel(tmp_path / "wheels" / "packages" / f"{name}-1-py3-none-any.whl",
                   {f"{name}/__init__.py": "here = True\n"})  # fmt: skip
    _, found, table = check(
        tmp_path / "out", "check", "--parts", "build,add", "--wheel", str(tmp_path / "wheels")
    )
    assert held(found) == {"build": True, "add": True}
    assert found["package"]["from"] == NAME and f"Installed from {NAME}" in table
    lacks = importlib.util.find_spec("sortedcontainers") is None
    assert found["package"]["carried"] == ["mpgluon_carried"] + ["sortedcontainers"] * lacks
    site = str(tmp_path / "out-work" / "site")
    assert f"({os.path.join(site, 'mpgluon')})" in found["package"]["info"][0]


def test_pip_installs_an_lzma_wheel(tmp_path):
    wheel = made(tmp_path, {"mpgluon/_cuda.so": b"x" * 9000, "mpgluon/__init__.py": "here = 1\n"})
    with zipfile.ZipFile(wheel) as archive:
        assert {info.compress_type for info in archive.infolist()} >= {zipfile.ZIP_LZMA}
    options = ["--no-index", "--no-deps", "-q", "--target", str(tmp_path / "site")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, wheel], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "mpgluon" / "_cuda.so").read_bytes() == b"x" * 9000


def test_incompatible_wheels_are_not_chosen(tmp_path):
    wheel = made(tmp_path, {"mpgluon/_cuda.so": b""})
    assert package.choose(wheel) == (wheel, None) == package.choose(str(tmp_path / "wheels"))
    assert package.choose("") == (None, "no wheel was given")
    assert package.choose(str(tmp_path / "no.whl"))[1].startswith("there is no wheel at ")
    other = tmp_path / "wheels" / NAME.replace(OWN, "cp39")
    os.rename(wheel, other)
    assert f"cannot use {other.name}" in package.choose(str(other))[1]
    for content, why in ((b"", "cannot be read"), (None, "was made from other sources")):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("mpgluon-0.dist-info/SOURCES", "0")
        if content is not None:
            with open(wheel, "wb") as f:
                f.write(content)
        assert why in package.choose(wheel)[1]
    for name, good in [
        (f"a-1-{OWN}-{OWN}-manylinux_2_17_{os.uname().machine}.manylinux2014_x.whl", False),
        (f"a-1-{OWN}-{OWN}-manylinux2014_x.manylinux_2_17_{os.uname().machine}.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        (f"a-1-cp39-abi3-linux_{os.uname().machine}.whl", True),
        (f"a-1-cp399-abi3-linux_{os.uname().machine}.whl", False),
        (f"a-1-{OWN}-{OWN}-macosx_11_0_arm64.whl", False),
        (f"a-1-{OWN}-{OWN}x-linux_{os.uname().machine}.whl", False),
    ]:
        assert package.fits(name) == good, name


def test_sources_digest_depends_on_each_source(tmp_path):
    for name in ("setup.py", "pyproject.toml", "csrc/a.c", "kernels/b.cu", "mpgluon/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    seen = {gpu_wheel.sources_digest(tmp_path)}
    for name in ("setup.py", "pyproject.toml", "csrc/a.c", "kernels/b.cu", "mpgluon/c.py"):
        (tmp_path / name).write_text("2")
        seen.add(gpu_wheel.sources_digest(tmp_path))
    (tmp_path / "mpgluon" / "made.pyi").write_text("")  # a build product
    assert len(seen | {gpu_wheel.sources_digest(tmp_path)}) == 6


def test_gpu_wheel_without_nvcc_fails_early(tmp_path):
    hidden = "import shutil, sys; shutil.which = lambda *a, **k: None; sys.path.insert(0, 'tools')"
    code = f"{hidden}; import gpu_wheel; sys.argv[1:] = [{str(tmp_path / 'x')!r}]; gpu_wheel.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "MPGLUON_CUDA=1, but nvcc was not found" in done.stderr
    assert not (tmp_path / "x").exists()

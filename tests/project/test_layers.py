"""Layering: includes and imports point in one direction, files stay readable, and the core has no
mutable globals except its runtime state."""

import ast
import os
import re
import shutil
import subprocess

import pytest

from mpgluon import _core
from support.paths import ROOT

# The layers that each layer may include, in addition to itself and system headers.
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
# Kernels may use the parts of csrc/op that describe calls, not those that run them.
KERNEL_FORBIDDEN = {"op/invoke.h", "op/infer.h"}
# Backends do not depend on each other.
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
    """Returns the layer of a path that is absolute or relative to the root."""
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


def test_files_have_at_most_800_lines():
    """A longer file has more than one subject."""
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
    """Tables of ops, comments and macros are laid out by hand; the formatter keeps them."""
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


def test_test_files_do_not_import_each_other():
    """Shared code is in tests/support. Programs in strings, which run separately, are exempt."""
    wrong, paths = [], list(files("tests", ending=".py"))
    tests = {
        name for name in (os.path.basename(path)[:-3] for path in paths) if name.startswith("test_")
    }
    # Parsing all files takes seconds, so only files that name a test file are parsed.
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


# Files that may compare ops: the families of ops, and rules that rewrite specific ops.
FAMILIES = (
    "csrc/op/",
    "kernels/",
    "csrc/graph/rewrite/",
    "csrc/graph/simplify/algebraic_simplification.c",
    "csrc/graph/partition/experts.c",
)


def test_core_asks_ops_for_their_traits():
    """Passes, planners and executors query an op's traits; they name an op only to emit or call
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


# Special cases of MXNet itself: a name of topk's output, and files of older versions.
PYTHON_RULES = {
    ("symbol/_graph.py", "topk"),
    ("symbol/_json.py", "argmax"),
    ("symbol/_json.py", "argmin"),
    ("symbol/_json.py", "Custom"),
    ("symbol/_json.py", "UpSampling"),
}


def test_python_asks_ops_for_their_traits():
    """Python code does not derive properties of ops from their names."""
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


def test_sources_start_with_a_comment():
    endings = (".h", ".c", ".cu", ".def", ".inc")
    wrong = [
        os.path.relpath(p, ROOT)
        for p in files("csrc", "kernels", ending=endings)
        if not open(p).read().startswith("/*")
    ]
    assert not wrong, "sources without an opening comment: " + ", ".join(wrong)


SOURCES = (".c", ".h", ".def", ".inc", ".cu", ".cpp", ".py")
FOLDERS = ("csrc", "kernels", "mpgluon", "tests", "benchmarks", "examples", "tools")
# Files of MXNet, of users, and of program output
ELSEWHERE = re.compile(
    r"example/gluon/.*|llama\.cpp|mxnet_suite\.py|file\.py|own\.h|lib_api\.h|soft_clip\.c|mine\.c"
)


def mentions():
    """Yields (file, name) of all sources that comments, docstrings and docs name."""
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
    """True if a name without a folder is a file of the same layer."""
    return (
        "/" in name or not name.endswith((".c", ".h", ".cu")) or (layer_of(path), name) in by_layer
    )


def imported_at_first(path):
    """Yields the package's modules that a module imports at import time."""

    def visit(body):
        for node in body:
            if isinstance(node, ast.Try):
                yield from visit(node.body)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from visit(node.body)
            elif isinstance(node, ast.ImportFrom):
                yield node

    yield from imported_by(path, visit)


def imported_at_all(path):
    """Yields the package's modules that a module imports, also in functions, but not for type
    checkers."""

    def visit(body):
        for node in body:
            if isinstance(node, ast.ImportFrom):
                yield node
            elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
                yield from visit(ast.iter_child_nodes(node))

    yield from imported_by(path, visit)


def imported_by(path, visit):
    """Yields the package's modules that statements of a module import. `visit` yields the
    statements, given the body of the module."""
    package = os.path.relpath(path, ROOT)[: -len(".py")].split(os.sep)[:-1]
    with open(path) as f:
        body = ast.parse(f.read()).body
    for node in visit(body):
        base = package[: len(package) - node.level + 1] if node.level else []
        source = [*base, *filter(None, (node.module or "").split("."))]
        if source[0] != "mpgluon":
            continue
        for alias in node.names:
            for known in ([*source, alias.name], source):
                if known[-1] == "_core":
                    break
                if (module := source_of(known)) is not None:
                    yield module
                    break


def source_of(name):
    """Returns the file of a module, whose name is a list, or None."""
    for folder in ("mpgluon", os.path.join("mpgluon", "legacy")):
        for ending in (".py", os.sep + "__init__.py"):
            path = os.path.join(ROOT, folder, *name[1:]) + ending
            if os.path.exists(path):
                return path


def test_modules_have_no_import_cycles():
    """Any module can be imported first."""
    imports = {path: set(imported_at_first(path)) for path in files("mpgluon", ending=".py")}
    assert sum(map(len, imports.values())) > len(imports)
    while free := {path for path, needed in imports.items() if not needed & imports.keys()}:
        for path in free:
            del imports[path]
    # The remaining modules are in a cycle or depend on one.
    needed = set().union(*imports.values())
    assert not imports, "circles: " + ", ".join(
        os.path.relpath(path, ROOT) for path in sorted(imports) if path in needed
    )


def test_no_module_needs_a_legacy_module():
    legacy = os.path.join(ROOT, "mpgluon", "legacy", "")
    paths = list(files("mpgluon", ending=".py"))
    assert any(path.startswith(legacy) for path in paths)
    wrong = [
        f"{os.path.relpath(path, ROOT)} imports {os.path.relpath(needed, ROOT)}"
        for path in paths
        for needed in imported_at_first(path)
        if needed.startswith(legacy) and not path.startswith(legacy)
    ]
    assert not wrong, "\n".join(wrong)


# Parts of the package that nothing below them imports, and the parts that may import them.
UPPER = {
    "as_mxnet": ["port/"],
    "contrib": ["gluon/contrib/"],
    "interop": [],
    "module": ["contrib/"],
    "onnx": ["contrib/"],
    "port": [],
    "test_utils": [],
    "visualization": [],
}


def test_lower_modules_do_not_import_upper_ones():
    """An import in a function avoids a cycle at import time, but not the dependency."""
    top = os.path.join(ROOT, "mpgluon", "")
    seen, wrong = set(), []
    for path in files("mpgluon", ending=".py"):
        name = path.removeprefix(top)
        for needed in imported_at_all(path):
            part = needed.removeprefix(top).split(os.sep)[0].removesuffix(".py")
            if part in UPPER and not name.startswith((part + "/", part + ".py")):
                seen.add(part)
                if not name.startswith(("__init__.py", *UPPER[part])):
                    wrong.append(f"{name} imports {needed.removeprefix(top)}")
    assert seen >= {"contrib", "module"}
    assert not wrong, "\n".join(wrong)


# Files of csrc that call each other both ways, directly or through other files.
CIRCLES = {
    # Arrays, nodes, parameter sets and traces hold references to each other.
    frozenset({"autograd/array", "autograd/parameter_set", "autograd/tape", "autograd/trace"}),
    # A call is made of calls: its casts, its copies between groups, the ops of a composed op.
    frozenset(
        {"autograd/composed", "autograd/groups", "autograd/mixed_precision", "autograd/record"}
    ),
    # The library calls the core through services, which gpu.c provides.
    frozenset({"device/gpu/gpu", "device/gpu/gpu_library"}),
    # The engine advances remote devices, whose waits advance the engine.
    frozenset({"device/ranks/engine", "device/ranks/remote"}),
    # A graph's builder calls the gradient, which builds the graph.
    frozenset({"graph/gradient/graph_gradient", "graph/ir/graph"}),
    # Rows of the registry refer to functions, which call ops by their rows.
    frozenset(
        {
            "op/batching/batching",
            "op/formula/gradient",
            "op/formula/internal",
            "op/precision/precision",
            "op/registry",
            "op/sharding/sharding",
        }
    ),
    # The array type: its methods, and conversions from and to Python's types.
    frozenset(
        {
            "python/array/array",
            "python/array/array_key",
            "python/array/assign",
            "python/array/basic_key",
            "python/array/dlpack",
            "python/array/exchange",
            "python/array/index",
            "python/array/method",
            "python/array/number",
            "python/array/numpy_number",
            "python/array/sparse",
            "python/array/traced_key",
            "python/context",
            "python/op/params",
        }
    ),
    # A storage's release hands saved contents over, and their release destroys storages.
    frozenset({"tensor/contents", "tensor/storage"}),
}
DEFINED = re.compile(
    r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][\w *]*?\b(mpg_\w+)\s*"
    r"(?:\([^;{}]*\)\s*\{|(?:\[[^\]]*\])*\s*[=;])",
    re.M,
)
INLINE = re.compile(
    r"^static inline [\w *]*?\b(mpg_\w+)\([^;{}]*\)\s*\{(.*?)(?:^\}|\}$)", re.M | re.S
)


def code_of(path):
    """Returns the text of a C file without comments and strings."""
    with open(path) as f:
        return re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', " ", f.read(), flags=re.S)


def test_files_do_not_call_in_circles():
    """A file can be read, and tested, after the files that it calls."""
    code = {path: code_of(path) for path in files("csrc", ending=(".c", ".h"))}
    inline, owner = {}, {}
    for path, text in code.items():
        if path.endswith(".c"):
            owner.update(dict.fromkeys(DEFINED.findall(text), path))
        else:
            inline.update(INLINE.findall(text))

    def used(text, seen):
        for name in set(re.findall(r"\bmpg_\w+", text)) - seen:
            seen.add(name)
            used(inline.get(name, ""), seen)
        return seen

    calls = {
        path: {owner[name] for name in used(text, set()) & owner.keys()} - {path}
        for path, text in code.items()
        if path.endswith(".c")
    }
    assert sum(map(len, calls.values())) > 2 * len(calls)
    reached = {path: set(targets) for path, targets in calls.items()}
    for middle in calls:  # Warshall's transitive closure
        for path in calls:
            if middle in reached[path]:
                reached[path] |= reached[middle]
    found = {
        frozenset(
            os.path.relpath(other, os.path.join(ROOT, "csrc"))[: -len(".c")].replace(os.sep, "/")
            for other in reached[path]
            if path in reached[other]
        )
        for path in calls
        if path in reached[path]
    }
    assert found == CIRCLES


def test_named_sources_exist():
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


# Exempt folders: data, and samples with one file per family
LISTS = ("tests/data", "tests/fuzz/corpus", "tests/samples")


def test_folders_have_a_limited_number_of_sources():
    """About twenty files each; MXNet's API requires more public modules in one folder."""
    more = {"mpgluon": 27, "benchmarks": 25}
    long = []
    for top in ("csrc", "kernels", "mpgluon", "tests", "benchmarks", "tools"):
        for path, _, names in os.walk(os.path.join(ROOT, top)):
            folder = os.path.relpath(path, ROOT).replace(os.sep, "/")
            count = sum(name.endswith(SOURCES) for name in names)
            if count > more.get(folder, 23) and not folder.startswith(LISTS):
                long.append(f"{folder}: {count}")
    assert not long, "\n".join(long)


# Runtime state by file: the registry, the device table and their dependents; thread-local flags;
# memory and counters kept between calls. New entries need a reason.
WRITABLE = {
    "csrc/autograd/array": "changes",
    "csrc/autograd/backward": "kept_passes",
    "csrc/autograd/collect": "passes",
    "csrc/autograd/mode": "mpg_mode np_shape_everywhere",
    "csrc/autograd/parameter_set": "numbers",
    "csrc/compile/invariants/invariants": "keepers",
    "csrc/compile/invariants/kept_values": "chains salts unknown",
    "csrc/autograd/tape": "tape",
    "csrc/base/host": "collecting current_host intruder intruding turns",
    "csrc/base/library": "library_folders library_opened library_table num_library_folders",
    "csrc/base/memory": "allocations_until_failure failure_happened failures_left kept_spaces",
    "csrc/base/status": "error_text",
    "csrc/device/cores": "known",
    "csrc/device/cpu/shuffle": "shuffle",
    "csrc/device/device": "table worker_device",
    "csrc/device/failure": "no_memory_cause passed_on",
    "csrc/device/gpu/gpu_library": "gpu_library",
    "csrc/device/gpu/pinned": "pinned",
    "csrc/device/rendezvous": "rendezvous_list",
    "csrc/device/profiler": "latest_start mpg_profiling",
    "csrc/device/ranks/calls": "alone calls",
    "csrc/device/ranks/remote": "remotes",
    "csrc/device/ranks/state": "mpg_the_engine",
    "csrc/device/runtime": "runtime",
    "csrc/device/scope": "chunks count table table_size",
    "csrc/device/settings": "settings",
    "csrc/device/spin": "spinning",
    "csrc/device/submission": "points",
    "csrc/io/file": "counter",
    "csrc/op/user/extension": "libraries num_libraries",
    "csrc/op/invoke": "random_state",
    "csrc/op/params": "intern_table",
    "csrc/op/precision/precision": "mpg_precision_on rules",
    "csrc/op/registry": "added names num_added numpy_names numpy_ops signatures",
    "csrc/op/submit": "kernel_tables",
    "csrc/python/array/array": "unused",
    "csrc/python/array/exchange": "mpg_numpy_api mpg_numpy_apiPyArray_RUNTIME_VERSION",
    "csrc/python/array/host": "intruder lines",
    "csrc/python/array/index": "all",
    "csrc/python/array/number": "scalar_params",
    "csrc/python/context": "cached current",
    "csrc/python/errors": "mpg_py",
    "csrc/python/graph/trace": "aside",
    "csrc/python/module": "state",
    "csrc/tensor/contents": "late_savers tracked_savers",
    "csrc/tensor/storage": "births foreign_reads free_storages leaving num_free watched_writes",
    "kernels/cpu/vendor/onednn": (
        "onednn_attributes onednn_available onednn_functions onednn_loaded"
    ),
    "kernels/cpu/vendor/openblas": "openblas_available openblas_functions openblas_loaded",
}
# Python requires writable tables of methods and slots, and names of arguments.
PYTHON_TABLES = r"\w*(methods|slots|spec|members|properties)|definition|names"


def objects():
    for path, _, names in os.walk(os.path.join(ROOT, "build")):
        if "release-" in path and "coverage" not in path:  # coverage adds counters
            yield from (os.path.join(path, n) for n in names if n.endswith(".o"))


def writable_symbols(path):
    """Yields objects in writable sections, not constant tables of pointers (.data.rel.ro).

    Function-local objects lose the part that makes them unique: a numeric suffix (gcc) or the
    function's name as a prefix (clang).
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
            continue  # stale objects of moved files
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

"""Stubs and type hints match the package."""

import ast
import builtins
import inspect
import pathlib

import pytest

import mpgluon as mx
from mpgluon import _core
from mpgluon._internal import stubs
from mpgluon.ndarray._namespaces import place

PACKAGE = pathlib.Path(mx.__file__).parent


def test_stubs_match_the_registry():
    """The build generates them; in a source tree, build in place to regenerate them."""
    if not (PACKAGE / "_core.pyi").exists():
        pytest.skip("a sanitizer's build makes no stubs")
    for path, text in stubs.generate().items():
        compile(text, path, "exec")
        assert (PACKAGE / path).read_text(encoding="utf-8") == text, path


def test_stubs_define_every_name_they_use():
    """A type checker silently treats an undefined name as an unknown type."""
    for path, text in stubs.generate().items():
        tree = ast.parse(text)
        defined = set(dir(builtins))
        for node in ast.walk(tree):
            if isinstance(node, (ast.ImportFrom, ast.Import)):
                defined |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not used - defined - {"property", "staticmethod"}, path


def test_stubs_have_parameters_and_types():
    texts = stubs.generate()
    assert (
        "def FullyConnected(data: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None"
        in texts["ndarray/op.pyi"]
    )
    assert "def softmax(data: Symbol | None = None" in texts["symbol/op.pyi"]
    assert "    def softmax(self, length: ArrayLike | None = None" in texts["_core.pyi"]
    assert "    def softmax(self, length: Symbol | None = None" in texts["symbol/_methods.pyi"]
    assert "def gemm2(A: ArrayLike, B: ArrayLike, " in texts["ndarray/linalg.pyi"]
    # an array method that is not an op
    assert "    def asnumpy(self) -> np.ndarray[Any, Any]:" in texts["_core.pyi"]


@pytest.mark.parametrize("space", ["op", "random", "linalg", "contrib", "_internal"])
def test_stubs_name_every_function(space):
    """The stubs name exactly the ops of `nd` and `sym`, without those of loaded libraries."""
    rows = set(_core.list_ops())
    loaded = {
        place(name)[1] for name, op in _core.ops().items() if op.describe()["name"] not in rows
    }
    for package in (mx.nd, mx.sym):
        module = getattr(package, space)
        text = stubs.generate_namespace(space, symbol=package is mx.sym)
        listed = {
            line.split("(")[0].removeprefix("def ")
            for line in text.splitlines()
            if line.startswith("def ")
        }
        kinds = {
            name: type(value)
            for name, value in vars(module).items()
            if isinstance(value, (mx._core.Op, type(mx.sym.softmax)))
        }
        assert sorted(set(kinds) - listed - loaded) == []
        assert all(hasattr(module, name) for name in listed)


def is_public(name):
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def without_types(body, prefix, in_class):
    """Yields public functions and methods with unannotated parameters or results."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from without_types(node.body, f"{prefix}{node.name}.", True)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from without_types(node.body, prefix, in_class)
        elif isinstance(node, ast.FunctionDef) and is_public(node.name):
            static = any(ast.unparse(name) == "staticmethod" for name in node.decorator_list)
            given = node.args
            arguments = [*given.posonlyargs, *given.args][in_class and not static :]
            arguments += [*given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
            if node.returns is None or any(one.annotation is None for one in arguments):
                yield prefix + node.name


def test_public_functions_have_annotations():
    found = []
    for path in sorted(PACKAGE.glob("**/*.py")):
        name = path.relative_to(PACKAGE)
        if all(is_public(part.removesuffix(".py")) for part in name.parts):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{name}: {one}" for one in without_types(tree.body, "", False)]
    assert not found, "\n".join(found)
    tree = ast.parse("def f(a: int) -> int: ...\ndef g(a) -> int: ...\ndef h(): ...")
    assert list(without_types(tree.body, "", False)) == ["g", "h"]


def test_symbol_functions_have_signatures():
    assert str(inspect.signature(mx.sym.softmax)).startswith("(data=None, length=None, axis=-1")
    assert inspect.isroutine(mx.sym.softmax)  # help() shows signatures only of routines
    assert "attr : dict of str" in mx.sym.softmax.__doc__ and "out :" not in mx.sym.softmax.__doc__


def test_symbol_function_in_a_class_is_a_method():
    class Layer:
        activation = mx.sym.relu

    assert Layer.activation is mx.sym.relu
    x = mx.sym.var("x")
    with pytest.raises(TypeError, match="takes at most 1 arguments, got 2"):
        Layer().activation(x)

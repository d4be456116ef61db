"""Suggestions in error messages for unknown names of mx.np and mx.npx."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from .._core import Op
from .hints import of_module

if TYPE_CHECKING:
    from collections.abc import Callable

# Names that mx.np and mx.npx lack -> the replacement.
_NAMES = {
    "np.Inf": "np.inf",
    "np.asnumpy": "x.asnumpy()",
    "np.c_": "np.column_stack",
    "np.cumprod": "np.exp(np.cumsum(np.log(x))) for positive numbers, or numpy.cumprod, which "
    "computes on copies of the values",
    "np.fmax": "np.maximum",
    "np.fmin": "np.minimum",
    "np.fmod": "x - np.trunc(x / y) * y",
    "np.from_dlpack": "mx.nd.from_dlpack(tensor).as_np_ndarray()",
    "np.in1d": "np.isin",
    "np.int_": "np.int64",
    "np.linalg.LinAlgError": "mx.MXNetError, which is raised when the result is read",
    "np.linalg.solve_triangular": "mx.nd.linalg.trsm, which accepts arrays of mx.np",
    "np.load": "npx.load",
    "np.ma": "np.where and arrays of bools",
    "np.matrix": "np.array",
    "np.mgrid": "np.indices, or np.meshgrid(*vectors, indexing='ij')",
    "np.msort": "np.sort(x, axis=0)",
    "np.nanmean": "np.where(np.isnan(x), 0, x).sum() / (~np.isnan(x)).sum()",
    "np.nansum": "np.where(np.isnan(x), 0, x).sum()",
    "np.ogrid": "np.ix_, or np.arange(n)[:, None]",
    "np.product": "np.prod",
    "np.r_": "np.concatenate",
    "np.random.Generator": "mx.random.seed, and the functions of np.random",
    "np.random.RandomState": "mx.random.seed, and the functions of np.random",
    "np.random.bernoulli": "npx.random.bernoulli",
    "np.random.default_rng": "mx.random.seed, and the functions of np.random",
    "np.random.normal_n": "npx.random.normal_n",
    "np.random.standard_gamma": "np.random.gamma(shape, size=size)",
    "np.random.standard_normal": "np.random.normal(size=size)",
    "np.random.uniform_n": "npx.random.uniform_n",
    "np.s_": "slice",
    "np.save": "npx.save",
    "np.savez": "npx.savez",
    "np.seterr": "numpy.seterr, which affects only NumPy",
    "np.testing": "numpy.testing, or mx.test_utils",
    "np.vectorize": "functions of arrays, or numpy.vectorize, which computes on copies",
    "npx.Custom": "mx.nd.Custom",
    "npx.array": "np.array",
    "npx.cpu_count": "os.cpu_count",
    "npx.custom": "mx.nd.Custom",
    "npx.from_dlpack": "mx.nd.from_dlpack(tensor).as_np_ndarray()",
    "npx.from_numpy": "np.array",
    "npx.linalg": "np.linalg",
    "npx.random.normal": "np.random.normal",
    "npx.random.uniform": "np.random.uniform",
    "npx.seed": "np.random.seed",
    "npx.to_dlpack_for_read": "mx.nd.to_dlpack_for_read",
    "npx.to_dlpack_for_write": "mx.nd.to_dlpack_for_write",
} | {
    f"np.{name}": replacement
    for names, replacement in (
        ("fv ipmt irr mirr nper npv pmt ppmt pv rate", "the package numpy-financial"),
        ("object complex complex64 complex128", "NumPy's arrays; devices have numbers only"),
        (
            "random.random random.random_sample random.ranf random.sample",
            "np.random.uniform(size=size)",
        ),
    )
    for name in names.split()
}
_NAMES |= {f"np.{kind}": kind for kind in ("float", "int", "str")}
# NumPy's other names of functions and dtypes.
_NAMES |= {
    f"np.{name}": f"np.{known}"
    for pair in (
        "concat=concatenate permute_dims=transpose acos=arccos acosh=arccosh asin=arcsin "
        "asinh=arcsinh atan=arctan atan2=arctan2 atanh=arctanh pow=power bitwise_invert=invert "
        "single=float32 double=float64 half=float16 intp=int64 intc=int32 byte=int8 ubyte=uint8 "
        "long=int64 longlong=int64 int16=int32 uint16=int32 uint32=int64 uint64=int64"
    ).split()
    for name, known in [pair.split("=")]
}

# Functions of NumPy that take no arrays or only describe them.
_WITHOUT_ARRAYS = set(
    "array2string base_repr binary_repr broadcast_shapes can_cast einsum_path errstate "
    "format_float_positional format_float_scientific frombuffer fromfile fromfunction fromiter "
    "fromregex fromstring get_printoptions geterr info isdtype isscalar issubdtype iterable "
    "loadtxt memmap mintypecode nditer ndenumerate ndindex printoptions show_config "
    "typename".split()
)


def list_names(module: str, create: Callable[[str], object] | None = None) -> None:
    """Makes ``dir`` of a module list the names in ``__all__`` and submodules, and its errors for
    unknown names suggest a replacement. ``create`` returns the value of a name in ``__all__`` that
    the module does not define."""
    names = vars(sys.modules[module])

    def missing(name):
        if create is None or name not in names["__all__"]:
            raise of_numpy(module, name)
        value = names[name] = create(name)
        return value

    def is_listed(name, value):
        submodule = isinstance(value, ModuleType) and value.__name__ == f"{module}.{name}"
        return name.startswith("__") or (submodule and not name.startswith("_"))

    def listed():
        others = [name for name, value in names.items() if is_listed(name, value)]
        return sorted({*names["__all__"], *others})

    names["__getattr__"], names["__dir__"] = missing, listed


def _public(module):
    """Returns the public functions and ops of a module by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, type)
    }


def of_numpy(module: str, name: str) -> AttributeError:
    """Returns the error for an unknown name of mx.np, mx.npx or one of their modules.

    It suggests a replacement, NumPy's function, or a near name.
    """
    inner = module.partition(".")[2]
    short = inner.replace("numpy_extension", "npx").replace("numpy", "np", 1)
    ways = {name: _NAMES.get(f"{short}.{name}", "")}
    if not ways[name] and not name.startswith("_") and inner in ("numpy", "numpy.linalg"):
        # vars() does not call NumPy's __getattr__, which warns for removed names.
        function = vars(sys.modules[inner]).get(name)
        if name in _WITHOUT_ARRAYS:
            ways[name] = f"{inner}.{name}"
        elif callable(function) and not isinstance(function, type):
            ways[name] = f"{inner}.{name}, which computes on copies of the values"
    if not ways[name] and not name.startswith("_"):
        ways[name] = _elsewhere(short, name)
    return of_module(module, name, ways)


# Modules that may have a name which a module of mx.np or mx.npx lacks
_ELSEWHERE = {
    "np": ("npx", "nd", "nd.contrib"),
    "npx": ("np", "nd", "nd.contrib"),
    "np.linalg": ("nd.linalg",),
    "np.random": ("npx.random",),
    "npx.random": ("np.random",),
}
_PACKAGES = {"np": "numpy", "npx": "numpy_extension", "nd": "ndarray"}


def _elsewhere(short, name):
    """Returns the function of that name in another module, or "". Functions of mx.nd must be ops,
    which accept arrays of mx.np."""
    package = __name__.partition(".")[0]
    for other in _ELSEWHERE.get(short, ()):
        first, _, rest = other.partition(".")
        module = sys.modules.get(".".join(filter(None, (package, _PACKAGES[first], rest))))
        value = vars(module).get(name) if module is not None else None
        if first == "nd" and isinstance(value, Op):
            return f"mx.{other}.{name}, which accepts arrays of mx.np"
        if first != "nd" and callable(value) and name in getattr(module, "__all__", ()):
            return f"{other}.{name}"
    return ""

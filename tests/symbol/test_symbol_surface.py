"""Every public name of MXNet 1.9.1's `Symbol` exists and works: methods that are ops equal those of
arrays."""

import copy
import pickle

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

NAMES = """
__abs__ __add__ __bool__ __call__ __copy__ __deepcopy__ __div__ __eq__ __ge__ __getitem__
__getstate__ __gt__ __iadd__ __idiv__ __imul__ __isub__ __iter__ __itruediv__ __le__ __len__ __lt__
__mod__ __mul__ __ne__ __neg__ __nonzero__ __pow__ __radd__ __rdiv__ __repr__ __rmod__ __rmul__
__rpow__ __rsub__ __rtruediv__ __setstate__ __sub__ __truediv__ abs arccos arccosh arcsin arcsinh
arctan arctanh argmax argmax_channel argmin argsort as_in_context as_nd_ndarray as_np_ndarray
asnumpy asscalar astype attr attr_dict backward bind broadcast_axes broadcast_like broadcast_to cbrt
ceil clip copy cos cosh debug_str degrees depth_to_space detach diag eval exp expand_dims expm1 fix
flatten flip floor get_backend_symbol get_children get_internals gradient handle infer_shape
infer_shape_partial infer_type infer_type_partial list_arguments list_attr list_auxiliary_states
list_inputs list_outputs log log10 log1p log2 log_softmax max mean min name nanprod nansum norm
one_hot ones_like optimize_for pad pick prod radians rcbrt reciprocal relu repeat reshape
reshape_like rint round rsqrt save shape_array sigmoid sign simple_bind sin sinh size_array slice
slice_axis slice_like softmax softmin sort space_to_depth split split_v2 sqrt square squeeze sum
swapaxes take tan tanh tile tojson topk transpose trunc wait_to_read zeros_like
""".split()

# Calls valid for symbols and arrays; `x` has the shape (1, 4, 2, 6), `y` (3, 4, 2, 6).
CALLS = {
    name: (lambda x, y, name=name: getattr(x, name)())
    for name in """
__abs__ __neg__ abs arccos arcsin arcsinh arctan arctanh argmax argmin argsort cbrt ceil cos cosh
degrees diag exp expm1 fix flatten floor log log10 log1p log2 log_softmax max mean min nanprod
nansum norm ones_like prod radians rcbrt reciprocal relu rint round rsqrt shape_array sigmoid sign
sin sinh size_array softmax softmin sort sqrt square squeeze sum tan tanh topk transpose trunc
zeros_like
""".split()
}
CALLS.update(
    {
        f"__{name}__": lambda x, y, name=name: getattr(y, f"__{name}__")(y * y)
        for name in "add sub mul truediv div mod pow eq ne lt le gt ge".split()
    }
)
CALLS.update(
    {
        f"__r{name}__": lambda x, y, name=name: getattr(y, f"__r{name}__")(2.5)
        for name in "add sub mul truediv div mod pow".split()
    }
)
CALLS.update(
    {
        "arccosh": lambda x, y: (x + 1).arccosh(),
        "argmax_channel": lambda x, y: x.reshape((4, 12)).argmax_channel(),
        "astype": lambda x, y: (9 * x).astype("int32"),
        "broadcast_axes": lambda x, y: x.broadcast_axes(axis=0, size=3),
        "broadcast_like": lambda x, y: x.broadcast_like(y),
        "broadcast_to": lambda x, y: x.broadcast_to((3, 4, 2, 6)),
        "clip": lambda x, y: x.clip(0.3, 0.6),
        "depth_to_space": lambda x, y: x.depth_to_space(2),
        "expand_dims": lambda x, y: x.expand_dims(1),
        "flip": lambda x, y: x.flip(axis=3),
        "one_hot": lambda x, y: (x * 4).one_hot(depth=4),
        "pad": lambda x, y: x.pad(
            mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 2, 2), constant_value=3
        ),
        "pick": lambda x, y: y.pick((y * 6).max(axis=3), axis=3),
        "repeat": lambda x, y: x.repeat(repeats=2, axis=1),
        "reshape": lambda x, y: x.reshape((0, -1, 3)),
        "reshape_like": lambda x, y: y.reshape((3, -1)).reshape_like(y),
        "slice": lambda x, y: y.slice(begin=(0, 1), end=(2, 3)),
        "slice_axis": lambda x, y: x.slice_axis(axis=1, begin=1, end=None),
        "slice_like": lambda x, y: y.slice_like(x),
        "space_to_depth": lambda x, y: x.space_to_depth(2),
        "split": lambda x, y: x.split(num_outputs=2, axis=1),
        "split_v2": lambda x, y: x.split_v2((1, 3), axis=1),
        "swapaxes": lambda x, y: x.swapaxes(1, 3),
        "take": lambda x, y: x.take(y * 3, axis=1),
        "tile": lambda x, y: x.tile(reps=(2, 1)),
    }
)


@pytest.mark.parametrize("name", CALLS)
def test_symbol_method_equals_array_method(name):
    rng = np.random.RandomState(0)
    arrays = {
        "x": nd.array(rng.uniform(0.1, 0.9, (1, 4, 2, 6))),
        "y": nd.array(rng.uniform(0.1, 0.9, (3, 4, 2, 6))),
    }
    call = CALLS[name]
    if name == "split_v2":  # arrays do not have this method
        expected = nd.split_v2(arrays["x"], (1, 3), axis=1)
    else:
        expected = CALLS[
            name.replace("div", "truediv") if name in ("__div__", "__rdiv__") else name
        ](arrays["x"], arrays["y"])
    symbol = call(mx.sym.var("x"), mx.sym.var("y"))
    found = symbol.eval(**{key: arrays[key] for key in symbol.list_arguments()})
    expected = expected if isinstance(expected, (list, tuple)) else [expected]
    assert len(found) == len(expected) == len(symbol)
    for one, two in zip(found, expected):
        assert one.dtype == two.dtype and one.shape == two.shape
        np.testing.assert_array_equal(one.asnumpy(), two.asnumpy())
    again = mx.sym.load_json(symbol.tojson())
    assert again.tojson() == symbol.tojson() and again.list_outputs() == symbol.list_outputs()


def dense():
    return mx.sym.FullyConnected(
        mx.sym.var("data", shape=(2, 3)), num_hidden=4, name="f", attr={"__mine__": "1"}
    )


OTHER = {  # name -> whether it works
    "__call__": lambda s, _: (
        s(data=mx.sym.var("z")).list_arguments() == ["z", "f_weight", "f_bias"]
    ),
    "__copy__": lambda s, _: copy.copy(s).tojson() == s.tojson(),
    "__deepcopy__": lambda s, _: copy.deepcopy(s).tojson() == s.tojson(),
    "__getitem__": lambda s, _: s[0].name == "f" and s["f_output"].name == "f",
    "__getstate__": lambda s, _: pickle.loads(pickle.dumps(s)).tojson() == s.tojson(),
    "__setstate__": lambda s, _: (
        t := mx.sym.var("t"),
        t.__setstate__(s.__getstate__()),
        t.name == "f",
    )[-1],
    "__iter__": lambda s, _: [one.name for one in s] == ["f"],
    "__len__": lambda s, _: len(s) == 1,
    "__repr__": lambda s, _: repr(s) == "<Symbol f>",
    "as_in_context": lambda s, _: (
        (mx.sym.var("x") * 2).as_in_context(mx.cpu(1)).eval(x=nd.ones((2,)))[0].context == mx.cpu(1)
    ),
    "as_nd_ndarray": lambda s, _: s.as_nd_ndarray() is s,
    "as_np_ndarray": lambda s, _: s.as_np_ndarray().as_nd_ndarray().tojson() == s.tojson(),
    "attr": lambda s, _: (
        s.attr("__mine__") == "1" and s.attr("num_hidden") == "4" and s.attr("none") is None
    ),
    "attr_dict": lambda s, _: s.attr_dict()["f"] == {"__mine__": "1", "num_hidden": "4"},
    "list_attr": lambda s, _: s.list_attr() == {"__mine__": "1", "num_hidden": "4"},
    "bind": lambda s, _: (
        s.bind(mx.cpu(), [nd.ones((2, 3)), nd.ones((4, 3)), nd.zeros((4,))])
        .forward()[0]
        .asnumpy()[0, 0]
        == 3
    ),
    "simple_bind": lambda s, _: s.simple_bind(mx.cpu(), data=(5, 3)).forward()[0].shape == (5, 4),
    "eval": lambda s, _: (
        s.eval(data=nd.ones((2, 3)), f_weight=nd.ones((4, 3)), f_bias=nd.zeros((4,)))[0].shape
        == (2, 4)
    ),
    "debug_str": lambda s, _: "Op:FullyConnected, Name=f" in s.debug_str(),
    "get_backend_symbol": lambda s, _: s.get_backend_symbol(None) is s,
    "optimize_for": lambda s, _: s.optimize_for(None) is s,
    "get_children": lambda s, _: s.get_children().list_outputs() == ["data", "f_weight", "f_bias"],
    "get_internals": lambda s, _: (
        s.get_internals().list_outputs() == ["data", "f_weight", "f_bias", "f_output"]
    ),
    "handle": lambda s, _: s.handle is not None,
    "infer_shape": lambda s, _: s.infer_shape() == ([(2, 3), (4, 3), (4,)], [(2, 4)], []),
    "infer_shape_partial": lambda s, _: (
        s.infer_shape_partial(data=(0, 3)) == ([(0, 3), (4, 3), (4,)], [(0, 4)], [])
    ),
    "infer_type": lambda s, _: s.infer_type(data="float16") == ([np.float16] * 3, [np.float16], []),
    "infer_type_partial": lambda s, _: s.infer_type_partial() == ([None] * 3, [None], []),
    "list_arguments": lambda s, _: s.list_arguments() == ["data", "f_weight", "f_bias"],
    "list_auxiliary_states": lambda s, _: (
        mx.sym.BatchNorm(s, name="n").list_auxiliary_states() == ["n_moving_mean", "n_moving_var"]
    ),
    "list_inputs": lambda s, _: (
        mx.sym.BatchNorm(s, name="n").list_inputs()[-2:] == ["n_moving_mean", "n_moving_var"]
    ),
    "list_outputs": lambda s, _: s.list_outputs() == ["f_output"],
    "name": lambda s, _: s.name == "f" and mx.sym.Group([s, s * 2]).name is None,
    "save": lambda s, path: (s.save(path), mx.sym.load(path).tojson() == s.tojson())[-1],
    "tojson": lambda s, _: mx.sym.load_json(s.tojson()).tojson() == s.tojson(),
}
# Calls that raise in MXNet as well, with the reason.
REFUSED = {
    "__bool__": (bool, mx.base.NotImplementedForSymbol),
    "__nonzero__": (lambda s: s.__nonzero__(), mx.base.NotImplementedForSymbol),
    "gradient": (lambda s: s.gradient(["data"]), mx.base.NotSupportedError),
    **{
        name: (lambda s, name=name: getattr(s, name)(), mx.base.NotImplementedForSymbol)
        for name in "asnumpy asscalar backward copy detach wait_to_read".split()
    },
    **{
        name: (lambda s, name=name: getattr(s, name)(s), mx.base.NotImplementedForSymbol)
        for name in "__iadd__ __isub__ __imul__ __itruediv__ __idiv__".split()
    },
}


@pytest.mark.parametrize("name", OTHER)
def test_symbol_method_works(name, tmp_path):
    assert OTHER[name](dense(), str(tmp_path / "symbol.json"))


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_symbol_method_raises(name):
    call, error = REFUSED[name]
    with pytest.raises(error):
        call(dense())


def test_every_public_symbol_name_is_tested():
    assert sorted([*CALLS, *OTHER, *REFUSED]) == sorted(NAMES)
    missing = [name for name in NAMES if not hasattr(mx.sym.Symbol, name)]
    assert not missing


def test_contrib_namespaces_are_the_same_modules():
    from mpgluon.contrib import ndarray, symbol

    assert mx.contrib.nd is ndarray is nd.contrib and mx.contrib.sym is symbol is mx.sym.contrib

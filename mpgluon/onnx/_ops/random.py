"""Random number ops. The numbers that onnxruntime draws differ from those of mx.nd."""

from __future__ import annotations

from .._package import NUMBERS
from .._table import exports

# Dtypes that ONNX's random ops support.
FLOATS = ("float16", "float32", "float64")
# op -> (ONNX op, ONNX attributes and the corresponding parameters)
DRAWN = {
    "_random_normal": ("RandomNormal", {"mean": "loc", "scale": "scale"}),
    "_random_uniform": ("RandomUniform", {"low": "low", "high": "high"}),
}


def _enter(op, onnx, parameters):
    def drawn(g, call, function, *inputs, **shape):
        dtype = call.dtype if call.dtype in FLOATS else "float32"
        given = {key: float(call[name]) for key, name in parameters.items()}
        if not given.get("scale", 1.0) > 0:  # it would crash the process in some runtimes
            call.refuse("scale must be above 0")
        return g.cast(function(*inputs, dtype=NUMBERS[dtype], **given, **shape), call.dtype, dtype)

    @exports(op, onnx)
    def of_shape(g, call):
        if not all(isinstance(size, int) for size in call.shape):
            call.refuse("random numbers of a dynamic shape cannot be converted")
        return drawn(g, call, g.__getattr__(onnx), shape=list(call.shape))

    @exports(f"{op}_like", f"{onnx}Like")
    def like(g, call, x):
        return drawn(g, call, g.__getattr__(f"{onnx}Like"), x)


for _op, (_onnx, _parameters) in DRAWN.items():
    _enter(_op, _onnx, _parameters)


@exports("_sample_multinomial", "Log, Multinomial")
def multinomial(g, call, x):
    if call["get_prob"]:
        call.refuse("get_prob=True cannot be converted")
    rows = g.reshape(g.cast(x, "float32"), (1, x.size(0))) if x.ndim == 1 else g.cast(x, "float32")
    shape, count = call["shape"], 1
    for size in (shape,) if isinstance(shape, int) else shape:
        count *= size
    found = g.Multinomial(g.Log(rows), sample_size=count, dtype=NUMBERS["int32"])
    return g.cast(g.reshape(found, call.shape, ()), call.dtype, "int32")

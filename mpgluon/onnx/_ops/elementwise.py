"""Element-wise ops, and ops that select between elements."""

from __future__ import annotations

import math

import numpy as np

from ... import symbol as sym
from ...symbol._methods import function
from .._graph import value
from .._package import ONNXError, dtype_of
from .._table import exports, imports

# Ops with an ONNX equivalent, for export and import.
SAME = {
    "abs": "Abs",
    "arccos": "Acos",
    "arccosh": "Acosh",
    "arcsin": "Asin",
    "arcsinh": "Asinh",
    "arctan": "Atan",
    "arctanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "negative": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "softsign": "Softsign",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}

# Identity ops.
NOTHING = "_copy BlockGrad make_loss MakeLoss _copyto cast_storage"


# Ops that ONNX supports for integers. All other ops cast integers to float32.
OF_INTEGERS = {"abs", "negative", "sign", "square"}
INTEGERS = {"int8", "uint8", "int32", "int64", "bool"}
# Ops that return integers unchanged.
ROUNDING = {"ceil", "floor", "fix", "trunc", "round", "rint", "_rint_even", "_contrib_round_ste"}
# The dtype in which arithmetic is computed, for dtypes that onnxruntime has no kernels for. The
# casts back wrap like the arithmetic of the narrow dtype.
WIDE = {"int8": "int32", "uint8": "int32"}


def _of_floats(g, op, x, function):
    """Applies a function that is only defined for floats to numbers of any dtype. The result has
    the dtype of the call: in mx.np, functions of integers return floats."""
    dtype = g.call.dtype
    if x.dtype not in INTEGERS:
        return function(x)
    if op in ROUNDING:
        return g.cast(x, dtype)
    if op in OF_INTEGERS:
        wide = WIDE.get(x.dtype, x.dtype)
        return g.cast(function(g.cast(x, wide)), dtype, wide)
    wide = "float64" if dtype == "float64" else "float32"
    g.number_dtype = wide
    return g.cast(function(value(g.cast(x, wide), x.shape, wide)), dtype, wide)


def as_result(g, call, x):
    """Casts integers to the dtype of the call: in mx.np, functions of integers return floats."""
    if x.dtype not in INTEGERS:
        return x
    g.number_dtype = call.dtype
    return value(g.cast(x, call.dtype), x.shape, call.dtype)


def _enter_same(op, onnx):
    @exports(op, onnx)
    def same(g, call, x):
        return _of_floats(g, op, x, lambda y: g.emit(onnx, y))

    @imports(onnx)
    def back(node):
        return getattr(sym, op)(node.symbol(0), name=node.name)


for _op, _onnx in SAME.items():
    _enter_same(_op, _onnx)


@exports(NOTHING, "nothing")
def nothing(g, call, x):
    return x


@exports("Dropout", "nothing")
def dropout(g, call, x):
    if call["mode"] == "always":
        call.refuse("mode='always' draws random numbers, which an inference file cannot do")
    return x


@imports("Round")
def round_back(node):
    return function("_rint_even")(node.symbol(0), name=node.name)


@imports("IsNaN IsInf")
def is_back(node):
    function = {"IsNaN": sym.contrib.isnan, "IsInf": sym.contrib.isinf}[node.op]
    return function(node.symbol(0), name=node.name)


@imports("Identity Dropout")
def identity(node):
    return node.value(0)


def _toward_zero(g, x):
    return g.Mul(g.Sign(x), g.Floor(g.Abs(x)))


def _away_from_zero(g, x):
    size = g.Abs(x)
    low = g.Floor(size)
    up = g.GreaterOrEqual(g.Sub(size, low), 0.5)
    return g.Mul(g.Sign(x), g.Where(up, g.Add(low, 1.0), low))


# Ops that consist of several nodes: op -> (the ONNX ops, for the table in the docs, a function).
COMPOSED = {
    "square": ("Mul", lambda g, x: g.Mul(x, x)),
    "cbrt": ("Sign, Pow", lambda g, x: g.Mul(g.Sign(x), g.Pow(g.Abs(x), 1 / 3))),
    "rcbrt": (
        "Sign, Pow",
        lambda g, x: g.Div(g.Sign(x), g.Pow(g.Abs(x), 1 / 3)),
    ),
    "rsqrt": ("Sqrt, Reciprocal", lambda g, x: g.Reciprocal(g.Sqrt(x))),
    "log2": ("Log, Mul", lambda g, x: g.Mul(g.Log(x), 1 / math.log(2))),
    "log10": ("Log, Mul", lambda g, x: g.Mul(g.Log(x), 1 / math.log(10))),
    "log1p": ("Log", lambda g, x: g.Log(g.Add(x, 1.0))),
    "expm1": ("Exp", lambda g, x: g.Sub(g.Exp(x), 1.0)),
    "fix": ("Floor, Sign", _toward_zero),
    "trunc": ("Floor, Sign", _toward_zero),
    "round": ("Floor, Sign", _away_from_zero),
    "rint": ("Ceil", lambda g, x: g.Ceil(g.Sub(x, 0.5))),  # as in mx.nd, halves are rounded down
    "degrees": ("Mul", lambda g, x: g.Mul(x, 180 / math.pi)),
    "radians": ("Mul", lambda g, x: g.Mul(x, math.pi / 180)),
    "mish": ("Softplus, Tanh", lambda g, x: g.Mul(x, g.Tanh(g.Softplus(x)))),
    "log_sigmoid": ("Softplus", lambda g, x: g.Neg(g.Softplus(g.Neg(x)))),
    "_rint_even": ("Round", lambda g, x: g.Round(x)),
    "_contrib_round_ste": ("Round", lambda g, x: g.Round(x)),
    "_contrib_sign_ste": ("Sign", lambda g, x: g.Sign(x)),
}


def _enter_composed(op, onnx, function):
    @exports(op, onnx)
    def composed(g, call, x):
        return _of_floats(g, op, x, lambda y: function(g, y))


for _op, (_onnx, _function) in COMPOSED.items():
    _enter_composed(_op, _onnx, _function)


@exports("hard_sigmoid", "HardSigmoid")
def hard_sigmoid(g, call, x):
    return g.HardSigmoid(x, alpha=float(call["alpha"]), beta=float(call["beta"]))


@imports("HardSigmoid")
def hard_sigmoid_back(node):
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return sym.hard_sigmoid(node.symbol(0), alpha=alpha, beta=beta, name=node.name)


@exports("_contrib_quadratic", "Mul, Add")
def quadratic(g, call, x):
    inner = g.Add(g.Mul(x, float(call["a"])), float(call["b"]))
    return g.Add(g.Mul(inner, x), float(call["c"]))


@exports("smooth_l1", "Abs, Where")
def smooth_l1(g, call, x):
    square = float(call["scalar"]) ** 2
    size = g.Abs(x)
    inner = g.Mul(g.Mul(x, x), 0.5 * square)
    return g.Where(g.Less(size, 1 / square), inner, g.Sub(size, 0.5 / square))


def _as_float(g, x):
    """Casts integers to float32, and leaves floats as they are."""
    return g.cast(x, "float32") if x.dtype in INTEGERS else x


@exports("_contrib_isnan", "IsNaN")
def isnan(g, call, x):
    return g.cast(g.IsNaN(_as_float(g, x)), call.dtype, "bool")


@exports("_contrib_isinf", "IsInf")
def isinf(g, call, x):
    return g.cast(g.IsInf(g.cast(x, "float32")), call.dtype, "bool")


@exports("_contrib_isfinite", "IsInf, IsNaN")
def isfinite(g, call, x):
    x = g.cast(x, "float32")
    return g.cast(g.Not(g.Or(g.IsInf(x), g.IsNaN(x))), call.dtype, "bool")


# --- Two inputs, or one and a number --------------------------------------------------------------


def _modulo(g, x, y):
    none = g.Equal(y, 0.0)  # in mx.nd, x modulo 0 is 0
    if g.number_dtype in INTEGERS:
        return g.Where(none, 0, g.Mod(x, g.Where(none, 1, y)))
    return g.Where(none, 0.0, g.Sub(x, g.Mul(g.Floor(g.Div(x, y)), y)))


def _hypot(g, x, y):
    return g.Sqrt(g.Add(g.Mul(x, x), g.Mul(y, y)))


def _divide(g, x, y):
    """Divides. An integer divided by 0 is 0, but onnxruntime fails."""
    known = g.constants.get(str(y))
    if g.number_dtype not in INTEGERS or (known is not None and known.all()):
        return g.Div(x, y)
    none = g.Equal(y, 0)
    return g.Where(none, 0, g.Div(x, g.Where(none, 1, y)))


def _is_negative(g, x):
    """True for negative numbers and for -0, whose reciprocal is -inf."""
    return g.Less(g.Where(g.Equal(x, 0.0), g.Reciprocal(x), x), 0.0)


def _arctan2(g, y, x):
    infinite = g.And(*[g.IsInf(g.cast(part, "float32", g.number_dtype)) for part in (x, y)])
    x, y = [g.Where(infinite, g.Sign(part), part) for part in (x, y)]
    none = g.Equal(x, 0.0)
    angle = g.Where(none, g.Mul(g.Sign(y), math.pi / 2), g.Atan(g.Div(y, g.Where(none, 1.0, x))))
    # On the left, the angle is turned by half a circle.
    left = g.Or(g.Less(x, 0.0), g.And(_is_negative(g, x), g.Equal(y, 0.0)))
    turn = g.Where(_is_negative(g, y), -math.pi, math.pi)
    return g.Where(g.IsNaN(y), y, g.Where(left, g.Add(angle, turn), angle))


def _copysign(g, x, y):
    size = g.Abs(x)
    return g.Where(_is_negative(g, y), g.Neg(size), size)


def _ldexp(g, x, y):
    unchanged = g.Or(g.Equal(x, 0.0), g.IsInf(g.cast(x, "float32", g.number_dtype)))
    # Two factors, because 2**y can overflow although the product is finite.
    half = g.Floor(g.Mul(y, 0.5))
    product = g.Mul(g.Mul(x, g.Pow(2.0, half)), g.Pow(2.0, g.Sub(y, half)))
    return g.Where(unchanged, x, product)


# function name -> (ONNX ops, a function, the ops with two inputs)
ARITHMETIC = {
    "add": ("Add", lambda g, x, y: g.Add(x, y), "broadcast_add elemwise_add _grad_add"),
    "sub": ("Sub", lambda g, x, y: g.Sub(x, y), "broadcast_sub elemwise_sub"),
    "mul": ("Mul", lambda g, x, y: g.Mul(x, y), "broadcast_mul elemwise_mul"),
    "div": ("Div", _divide, "broadcast_div elemwise_div"),
    "power": ("Pow", lambda g, x, y: g.Pow(x, y), "broadcast_power _power"),
    "maximum": ("Max", lambda g, x, y: g.Max(x, y), "broadcast_maximum _maximum"),
    "minimum": ("Min", lambda g, x, y: g.Min(x, y), "broadcast_minimum _minimum"),
    "mod": ("Div, Floor", _modulo, "broadcast_mod _mod"),
    "hypot": ("Sqrt", _hypot, "broadcast_hypot _hypot"),
    "arctan2": ("Atan, Where", _arctan2, "_arctan2"),
    "copysign": ("Abs, Where", _copysign, "_copysign"),
    "ldexp": ("Pow, Mul", _ldexp, "_ldexp"),
}
# Ops of an array and a number: the function, and True if the number comes first.
SCALARS = {
    "_plus_scalar": ("add", False),
    "_minus_scalar": ("sub", False),
    "_rminus_scalar": ("sub", True),
    "_mul_scalar": ("mul", False),
    "_div_scalar": ("div", False),
    "_rdiv_scalar": ("div", True),
    "_power_scalar": ("power", False),
    "_rpower_scalar": ("power", True),
    "_maximum_scalar": ("maximum", False),
    "_minimum_scalar": ("minimum", False),
    "_mod_scalar": ("mod", False),
    "_rmod_scalar": ("mod", True),
    "_hypot_scalar": ("hypot", False),
    "_arctan2_scalar": ("arctan2", False),
    "_rarctan2_scalar": ("arctan2", True),
    "_copysign_scalar": ("copysign", False),
    "_rcopysign_scalar": ("copysign", True),
    "_ldexp_scalar": ("ldexp", False),
    "_rldexp_scalar": ("ldexp", True),
}
COMPARISONS = {
    "equal": "Equal",
    "not_equal": "Equal, Not",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
}
LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}


# The ops of bools in mx.np: a sum is a logical or, and a product a logical and.
OF_BOOLS = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}


def _enter_arithmetic(onnx, function, ops):
    @exports(ops, onnx)
    def binary(g, call, x, y):
        if call.dtype == "bool" and onnx in OF_BOOLS:
            return g.emit(OF_BOOLS[onnx], g.cast(x, "bool"), g.cast(y, "bool"))
        g.number_dtype = wide = WIDE.get(call.dtype, call.dtype)
        return g.cast(function(g, g.cast(x, wide), g.cast(y, wide)), call.dtype, wide)


def _enter_scalar(op, function, onnx, first):
    @exports(op, onnx)
    def with_number(g, call, x):
        g.number_dtype = wide = WIDE.get(call.dtype, call.dtype)
        number = call["scalar"]
        if number == 0 and call.node.call.text("scalar")[0] == "-":
            number = -0.0
        number, x = g.number(wrapped(number, wide), wide), g.cast(x, wide)
        found = function(g, number, x) if first else function(g, x, number)
        return g.cast(found, call.dtype, wide)


# The smallest and the largest number of each integer dtype.
RANGES = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in INTEGERS - {"bool"}}


def wrapped(number, dtype):
    """Converts a number to a dtype like a kernel, which wraps integers out of range."""
    if dtype not in RANGES or not math.isfinite(number):
        return number
    low, high = RANGES[dtype]
    return (int(number) - low) % (high - low + 1) + low


def _comparable(g, onnx, x):
    """Returns the dtype in which an array is compared."""
    if x.dtype == "bool":
        return "bool" if onnx == "Equal" else "int32"
    return WIDE.get(x.dtype, x.dtype)


def _compared(g, onnx, x, y, dtype):
    base, *negated = onnx.split(", ")
    found = g.emit(base, x, y)
    return g.cast(g.Not(found) if negated else found, dtype, "bool")


def _enter_comparison(name, onnx):
    @exports(f"broadcast_{name} _{name}", onnx)
    def compare(g, call, x, y):
        wide = _comparable(g, onnx.split(",")[0], x)
        return _compared(g, onnx, g.cast(x, wide), g.cast(y, wide), call.dtype)

    @exports(f"_{name}_scalar", onnx)
    def compare_with_number(g, call, x):
        wide, number = WIDE.get(x.dtype, x.dtype), call["scalar"]
        if x.dtype in INTEGERS:
            # A number that the integers lack is compared as a float in mx.np.
            wide = "int32" if wide == "bool" else wide
            low, high = RANGES[wide]
            exact = math.isfinite(number) and number == int(number) and low <= number <= high
            if exact:
                number = int(number)
            elif call.node.call.numpy:
                wide = "float64"
        return _compared(g, onnx, g.cast(x, wide), g.number(number, wide), call.dtype)


def _enter_logic(name, onnx):
    @exports(f"broadcast_logical_{name} _logical_{name}", onnx)
    def logic(g, call, x, y):
        return g.cast(g.emit(onnx, g.cast(x, "bool"), g.cast(y, "bool")), call.dtype, "bool")

    @exports(f"_logical_{name}_scalar", onnx)
    def logic_with_number(g, call, x):
        number = g.number(bool(call["scalar"]), "bool")
        return g.cast(g.emit(onnx, g.cast(x, "bool"), number), call.dtype, "bool")


def _enter_bits(name, onnx):
    @exports(f"_bitwise_{name}", onnx)
    def bits(g, call, x, y):
        if call.dtype != "bool":
            call.refuse("only bits of bools can be converted")
        return g.emit(onnx, x, y)


for _onnx, _function, _ops in ARITHMETIC.values():
    _enter_arithmetic(_onnx, _function, _ops)
for _op, (_name, _first) in SCALARS.items():
    _enter_scalar(_op, ARITHMETIC[_name][1], ARITHMETIC[_name][0], _first)
for _name, _onnx in COMPARISONS.items():
    _enter_comparison(_name, _onnx)
for _name, _onnx in LOGIC.items():
    _enter_logic(_name, _onnx)
    _enter_bits(_name, _onnx)


@exports("_bitwise_not", "Not")
def inverted(g, call, x):
    if call.dtype != "bool":
        call.refuse("only bits of bools can be converted")
    return g.Not(x)


@exports("logical_not", "Not")
def logical_not(g, call, x):
    return g.cast(g.Not(g.cast(x, "bool")), call.dtype, "bool")


@exports("add_n", "Sum")
def add_n(g, call, *inputs):
    if call.dtype not in INTEGERS:
        return g.Sum(*inputs)
    total = inputs[0]
    for part in inputs[1:]:
        total = g.Add(total, part)
    return total


@exports("where", "Where")
def where(g, call, condition, x, y):
    condition = g.cast(condition, "bool")
    if condition_rows(call):
        rest = (1,) * (call.inputs[1].ndim - 1)
        condition = g.reshape(condition, (call.inputs[0].shape[0], *rest), call.inputs[0].shape)
    # onnxruntime selects between floats and some integers only.
    wide = {"bool": "uint8", "int8": "int32"}.get(call.dtype, call.dtype)
    return g.cast(g.Where(condition, g.cast(x, wide), g.cast(y, wide)), call.dtype, wide)


def condition_rows(call):
    """True if the condition of `where` of mx.nd is a vector, which selects rows instead of
    elements."""
    vector = call.inputs[0].ndim == 1 and call.inputs[1].ndim > 1
    return vector and not call.node.call.numpy


@exports("clip", "Clip")
def clip(g, call, x):
    low, high = call["a_min"], call["a_max"]
    if x.dtype in RANGES:  # bounds out of range do not limit
        least, most = RANGES[x.dtype]
        low, high = [None if end is None else min(max(end, least), most) for end in (low, high)]
    return g.Clip(x, low, high)


@exports("Cast amp_cast", "Cast")
def cast(g, call, x):
    return g.cast(x, call.dtype)


@exports("amp_multicast", "Cast")
def amp_multicast(g, call, *inputs):
    return [g.cast(x, dtype) for x, (_, dtype) in zip(inputs, call.outputs)]


# --- Activations ----------------------------------------------------------------------------------

ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}


@exports("Activation", "Relu, Sigmoid, Tanh, Softplus, Softsign")
def activation(g, call, x):
    return g.emit(ACTIVATIONS[call["act_type"]], x)


def gelu(g, x):
    return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Mul(x, math.sqrt(0.5))), 1.0))


@exports("LeakyReLU", "LeakyRelu, PRelu, Elu, Selu, Erf (gelu)")
def leaky_relu(g, call, x, gamma=None):
    x = as_result(g, call, x)
    kind, slope = call["act_type"], float(call["slope"])
    if kind == "prelu":
        axes, shape = (1,) * max(call.inputs[0].ndim - 2, 0), gamma.shape
        if len(shape) > 1:
            gamma = g.reshape(gamma, (*shape, *[1] * (x.ndim - len(shape))), shape)
            return g.Add(g.Relu(x), g.Mul(g.Min(x, 0.0), gamma))
        if len(shape) == 1 and call.inputs[0].ndim > 1 and shape != (1,):
            gamma = g.reshape(gamma, (*shape, *axes), shape)
        return g.PRelu(x, gamma)
    if kind == "rrelu":
        slope = (float(call["lower_bound"]) + float(call["upper_bound"])) / 2
    if kind in ("leaky", "rrelu"):
        return g.LeakyRelu(x, alpha=slope)
    if kind == "elu":
        return g.Elu(x, alpha=slope)
    if kind == "selu":
        return g.Selu(x)
    return gelu(g, x)


# --- Import ---------------------------------------------------------------------------------------

BINARY = {
    "Add": sym.broadcast_add,
    "Sub": sym.broadcast_sub,
    "Mul": sym.broadcast_mul,
    "Div": sym.broadcast_div,
    "Equal": sym.broadcast_equal,
    "Greater": sym.broadcast_greater,
    "GreaterOrEqual": sym.broadcast_greater_equal,
    "Less": sym.broadcast_lesser,
    "LessOrEqual": sym.broadcast_lesser_equal,
    "And": sym.broadcast_logical_and,
    "Or": sym.broadcast_logical_or,
    "Xor": sym.broadcast_logical_xor,
    "Pow": sym.broadcast_power,
}
MANY = {
    "Sum": sym.broadcast_add,
    "Max": sym.broadcast_maximum,
    "Min": sym.broadcast_minimum,
}


# Ops whose result has axes if one of their inputs has.
ELEMENTWISE = {*SAME.values(), *BINARY, *MANY}
ELEMENTWISE |= {"Cast", "Clip", "Identity", "IsInf", "IsNaN", "Mod", "Not", "Round", "Where"}


def _old_axis(node, x, y):
    """Reshapes the second input of an op before opset 7, so that its axes are aligned with those of
    the first input from `axis` on."""
    axis, ndim = node.attribute("axis"), node.ndim(0)
    if axis is None or not node.attribute("broadcast"):
        return y
    behind = ndim - axis % ndim - node.ndim(1)
    return sym.reshape(y, shape=(*[0] * node.ndim(1), *[1] * behind)) if behind > 0 else y


@imports(" ".join(BINARY))
def binary_back(node):
    x, y = node.symbol(0), node.symbol(1)
    if node.op in LOGIC.values():
        # bool values of ONNX can be any dtype here, and the two sides need not have the same.
        x, y = sym.cast(x, dtype="bool"), sym.cast(y, dtype="bool")
    return BINARY[node.op](x, _old_axis(node, x, y), name=node.name)


@imports(" ".join(MANY))
def many_back(node):
    found = node.symbol(0)
    for place in range(1, node.count):
        found = MANY[node.op](found, node.symbol(place))
    return found


@imports("Mean")
def mean_back(node):
    found = node.symbol(0)
    for place in range(1, node.count):
        found = sym.broadcast_add(found, node.symbol(place))
    return found / node.count


@imports("Mod")
def mod_back(node):
    if node.attribute("fmod", 0):
        raise ONNXError("Mod with fmod=1 is not supported")
    return sym.broadcast_mod(node.symbol(0), node.symbol(1), name=node.name)


@imports("Not")
def not_back(node):
    return sym.logical_not(node.symbol(0), name=node.name)


@imports("Where")
def where_back(node):
    condition, x, y = [node.symbol(place) for place in range(3)]
    dtype = node.dtype(1)
    if dtype == "bool":  # bool cannot be added
        dtype = "uint8"
        x, y = sym.cast(x, dtype=dtype), sym.cast(y, dtype=dtype)
    condition = sym.cast(condition, dtype=dtype)
    shapes = {node.shape(place) for place in range(3)}
    if len(shapes) > 1 or None in shapes:
        parts = (condition, x, y)  # broadcast all of them to their common shape
        zeros = sym.zeros_like(x)
        for part in (condition, y):
            zeros = sym.broadcast_add(zeros, sym.zeros_like(part))
        if "float" in dtype:
            zeros = sym.negative(zeros)  # -0 + -0 is -0, but -0 + 0 is 0
        condition, x, y = [sym.broadcast_add(part, zeros) for part in parts]
    if node.dtype(1) == "bool":
        return sym.cast(sym.where(condition, x, y), dtype="bool", name=node.name)
    return sym.where(condition, x, y, name=node.name)


@imports("Clip")
def clip_back(node):
    low, high = node.number(1), node.number(2)
    low = node.attribute("min", low)
    high = node.attribute("max", high)
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    return sym.clip(node.symbol(0), a_min=low, a_max=high, name=node.name)


@imports("Cast")
def cast_back(node):
    dtype = dtype_of(node.attribute("to"))
    return sym.cast(node.symbol(0), dtype=dtype, name=node.name)


@imports("Softplus")
def softplus_back(node):
    return sym.Activation(node.symbol(0), act_type="softrelu", name=node.name)


@imports("LeakyRelu")
def leaky_back(node):
    slope = node.attribute("alpha", 0.01)
    return sym.LeakyReLU(node.symbol(0), act_type="leaky", slope=slope, name=node.name)


@imports("Elu")
def elu_back(node):
    slope = node.attribute("alpha", 1.0)
    return sym.LeakyReLU(node.symbol(0), act_type="elu", slope=slope, name=node.name)


@imports("Selu")
def selu_back(node):
    alpha = node.attribute("alpha", 1.6732632423543772)
    gamma = node.attribute("gamma", 1.0507009873554805)
    x = node.symbol(0)
    low = sym.LeakyReLU(x, act_type="elu", slope=alpha)
    return low * gamma


@imports("PRelu")
def prelu_back(node):
    x, slope = node.symbol(0), node.symbol(1)
    below = sym.broadcast_mul(sym.minimum(x, 0), slope)
    return sym.broadcast_add(sym.relu(x), below, name=node.name)


@imports("HardSwish")
def hard_swish_back(node):
    x = node.symbol(0)
    return sym.elemwise_mul(x, sym.hard_sigmoid(x, alpha=1 / 6, beta=0.5), name=node.name)


@imports("Gelu")
def gelu_back(node):
    x = node.symbol(0)
    if node.attribute("approximate", "none") != "tanh":
        return sym.LeakyReLU(x, act_type="gelu", name=node.name)
    inner = (x + sym.square(x) * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (sym.tanh(inner) + 1)


@imports("Mish")
def mish_back(node):
    return sym.mish(node.symbol(0), name=node.name)

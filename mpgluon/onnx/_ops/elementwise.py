"""Element-wise ops, and ops that select between elements."""

from __future__ import annotations

import math

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


def _of_floats(g, op, x, function):
    """Applies a function that is only defined for floats to numbers of any dtype."""
    if x.dtype not in INTEGERS or op in OF_INTEGERS:
        return function(x)
    g.number_dtype = "float32"
    return g.cast(function(value(g.cast(x, "float32"), x.shape, "float32")), x.dtype, "float32")


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


@exports("_contrib_isnan", "IsNaN")
def isnan(g, call, x):
    return g.cast(g.IsNaN(x), call.dtype, "bool")


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
    if g.call.dtype in INTEGERS:
        return g.Mod(x, g.Where(none, 1, y))
    return g.Where(none, 0.0, g.Sub(x, g.Mul(g.Floor(g.Div(x, y)), y)))


def _hypot(g, x, y):
    return g.Sqrt(g.Add(g.Mul(x, x), g.Mul(y, y)))


# function name -> (ONNX ops, a function, the ops with two inputs)
ARITHMETIC = {
    "add": ("Add", lambda g, x, y: g.Add(x, y), "broadcast_add elemwise_add _grad_add"),
    "sub": ("Sub", lambda g, x, y: g.Sub(x, y), "broadcast_sub elemwise_sub"),
    "mul": ("Mul", lambda g, x, y: g.Mul(x, y), "broadcast_mul elemwise_mul"),
    "div": ("Div", lambda g, x, y: g.Div(x, y), "broadcast_div elemwise_div"),
    "power": ("Pow", lambda g, x, y: g.Pow(x, y), "broadcast_power _power"),
    "maximum": ("Max", lambda g, x, y: g.Max(x, y), "broadcast_maximum _maximum"),
    "minimum": ("Min", lambda g, x, y: g.Min(x, y), "broadcast_minimum _minimum"),
    "mod": ("Div, Floor", _modulo, "broadcast_mod _mod"),
    "hypot": ("Sqrt", _hypot, "broadcast_hypot _hypot"),
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


def _enter_arithmetic(onnx, function, ops):
    @exports(ops, onnx)
    def binary(g, call, x, y):
        g.number_dtype = call.dtype
        return function(g, g.cast(x, call.dtype), g.cast(y, call.dtype))


def _enter_scalar(op, function, onnx, first):
    @exports(op, onnx)
    def with_number(g, call, x):
        number, x = g.number(call["scalar"], call.dtype), g.cast(x, call.dtype)
        return function(g, number, x) if first else function(g, x, number)


def _compared(g, onnx, x, y, dtype):
    base, *negated = onnx.split(", ")
    found = g.emit(base, x, y)
    return g.cast(g.Not(found) if negated else found, dtype, "bool")


def _enter_comparison(name, onnx):
    @exports(f"broadcast_{name} _{name}", onnx)
    def compare(g, call, x, y):
        return _compared(g, onnx, x, y, call.dtype)

    @exports(f"_{name}_scalar", onnx)
    def compare_with_number(g, call, x):
        return _compared(g, onnx, x, float(call["scalar"]), call.dtype)


def _enter_logic(name, onnx):
    @exports(f"broadcast_logical_{name} _logical_{name}", onnx)
    def logic(g, call, x, y):
        return g.cast(g.emit(onnx, g.cast(x, "bool"), g.cast(y, "bool")), call.dtype, "bool")

    @exports(f"_logical_{name}_scalar", onnx)
    def logic_with_number(g, call, x):
        number = g.number(bool(call["scalar"]), "bool")
        return g.cast(g.emit(onnx, g.cast(x, "bool"), number), call.dtype, "bool")


for _onnx, _function, _ops in ARITHMETIC.values():
    _enter_arithmetic(_onnx, _function, _ops)
for _op, (_name, _first) in SCALARS.items():
    _enter_scalar(_op, ARITHMETIC[_name][1], ARITHMETIC[_name][0], _first)
for _name, _onnx in COMPARISONS.items():
    _enter_comparison(_name, _onnx)
for _name, _onnx in LOGIC.items():
    _enter_logic(_name, _onnx)


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
    return g.Where(condition, x, y)


def condition_rows(call):
    """True if the condition of `where` is a vector, which selects rows instead of elements."""
    return call.inputs[0].ndim == 1 and call.inputs[1].ndim > 1


@exports("clip", "Clip")
def clip(g, call, x):
    return g.Clip(x, call["a_min"], call["a_max"])


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
    condition = sym.cast(condition, dtype=node.dtype(1))
    shapes = {node.shape(place) for place in range(3)}
    if len(shapes) > 1 or None in shapes:
        parts = (condition, x, y)  # broadcast all of them to their common shape
        zeros = sym.zeros_like(x)
        for part in (condition, y):
            zeros = sym.broadcast_add(zeros, sym.zeros_like(part))
        condition, x, y = [sym.broadcast_add(part, zeros) for part in parts]
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

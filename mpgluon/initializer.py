"""Initializers of parameters.

An initializer is called with a name (an InitDesc) and an array, and fills the array. The suffix of
the name selects the values: "weight" gets the initializer's own values, "bias" and "beta" zeros,
"gamma" ones, "min" zeros, and "max" ones. Any other name is an error, unless the parameter has an
initializer of its own. Random values come from the operators of `mx.random`, so they depend on the
seed and the order of calls, not on the device.
"""

from __future__ import annotations

import logging
import re
import warnings
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from . import ndarray, random, registry
from ._internal import domain
from ._internal.hints import INITIALIZERS, near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from ._internal.types import Alias, Class, Init, NDArray

__all__ = [
    "InitDesc",
    "Initializer",
    "register",
    "alias",
    "create",
    "Load",
    "Mixed",
    "Zero",
    "One",
    "Constant",
    "Uniform",
    "Normal",
    "Orthogonal",
    "Xavier",
    "MSRAPrelu",
    "Bilinear",
    "LSTMBias",
    "FusedRNN",
]

near_names(__name__, **INITIALIZERS)


class InitDesc(str):
    """A parameter's name with its attributes (`attrs`, a dict) and the fallback initializer
    (`global_init`).

    Examples
    --------
    >>> mx.init.InitDesc("dense0_weight", {"lr_mult": "2"}).attrs
    {'lr_mult': '2'}
    """

    def __new__(
        cls, name: str, attrs: dict[str, str] | None = None, global_init: Initializer | None = None
    ) -> Self:
        desc = super().__new__(cls, name)
        desc.attrs = attrs or {}
        desc.global_init = global_init
        return desc


# Suffix of a name -> the method that fills the array; the first match wins.
_BY_SUFFIX = (
    ("weight", "_init_weight"),
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_beta"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
    ("weight_quantize", "_init_quantized_weight"),
    ("bias_quantize", "_init_quantized_bias"),
)
_LEGACY_BY_SUFFIX = (
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_beta"),
    ("weight", "_init_weight"),
    ("moving_mean", "_init_zero"),
    ("moving_var", "_init_one"),
    ("moving_inv_var", "_init_zero"),
    ("moving_avg", "_init_zero"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
)


def _root_mean_square(array):
    return str(float(ndarray.norm(array)) / sqrt(array.size))


class Initializer:
    """Base of initializers; a subclass defines `_init_weight(name, array)`.

    `dumps` writes `kwargs`.

    Examples
    --------
    >>> class Half(mx.init.Initializer):
    ...     def _init_weight(self, name, array):
    ...         array[:] = 0.5
    ...
    >>> net = nn.Dense(1, in_units=2)
    >>> net.initialize(Half())
    >>> net.weight.data().asnumpy().tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._verbose = False
        self._print_func = None

    def set_verbosity(
        self, verbose: bool = False, print_func: Callable[[NDArray], Any] | None = None
    ) -> Self:
        """Logs each initialization if `verbose`, with `print_func(array)`. Returns self.

        The default of `print_func` is the root mean square.
        """
        self._verbose = verbose
        self._print_func = print_func or _root_mean_square
        return self

    def _verbose_print(self, desc, init, arr):
        if self._verbose and self._print_func:
            logging.info("Initialized %s as %s: %s", desc, init, self._print_func(arr))

    def dumps(self) -> str:
        """Returns the JSON text of `[name, kwargs]`, from which `create` makes an equal object."""
        import json

        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, desc: str, arr: NDArray) -> None:
        if not isinstance(desc, InitDesc):
            self._legacy_init(desc, arr)
            return
        if desc.global_init is None:
            desc.global_init = self
        own = desc.attrs.get("__init__", "")
        if own:
            create(own)._init_weight(desc, arr)
            self._verbose_print(desc, own, arr)
            return
        for suffix, method in _BY_SUFFIX:
            if desc.endswith(suffix):
                getattr(self, method)(desc, arr)
                self._verbose_print(desc, suffix, arr)
                return
        self._init_default(desc, arr)

    def _legacy_init(self, name, arr):
        warnings.warn(
            "call initializers with init(mx.init.InitDesc(name), array); a plain string is "
            "deprecated",
            DeprecationWarning,
            stacklevel=3,
        )
        if not isinstance(name, str):
            raise TypeError(f"the name must be a string, got {type(name).__name__}")
        if not isinstance(arr, ndarray.NDArray):
            raise TypeError(f"the array must be an NDArray, got {type(arr).__name__}")
        if name.startswith("upsampling"):
            self._init_bilinear(name, arr)
        elif name.startswith("stn_loc") and name.endswith("weight"):
            self._init_zero(name, arr)
        elif name.startswith("stn_loc") and name.endswith("bias"):
            self._init_loc_bias(name, arr)
        else:
            for suffix, method in _LEGACY_BY_SUFFIX:
                if name.endswith(suffix):
                    getattr(self, method)(name, arr)
                    return
            self._init_default(name, arr)

    def _init_zero(self, _, arr):
        arr[...] = 0.0

    def _init_one(self, _, arr):
        arr[...] = 1.0

    _init_bias = _init_zero
    _init_beta = _init_zero
    _init_gamma = _init_one
    _init_quantized_bias = _init_zero

    def _init_bilinear(self, name, arr):
        if len(arr.shape) != 4:
            raise ValueError(
                f"bilinear upsampling weights must have 4 dimensions; {name} has shape {arr.shape}"
            )
        height, width = arr.shape[2:]
        factor = np.ceil(width / 2.0)
        centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        across = 1 - np.abs(np.arange(width) / factor - centre)
        down = 1 - np.abs(np.arange(height) / factor - centre)
        arr[...] = np.broadcast_to(down[:, None] * across[None, :], arr.shape).astype("float32")

    def _init_loc_bias(self, name, arr):
        if arr.shape != (6,):
            raise ValueError(
                f"the bias of a spatial transformer's localisation must have shape (6,); {name} "
                f"has {arr.shape}"
            )
        arr[...] = np.array([1.0, 0, 0, 0, 1.0, 0], dtype="float32")

    def _init_weight(self, name, arr):
        raise NotImplementedError(f"{type(self).__name__} must define _init_weight(name, array)")

    def _init_quantized_weight(self, _, arr):
        numbers = random.randint(-127, 127, shape=arr.shape, dtype="int32")
        arr[...] = numbers.asnumpy().astype("int8")

    def _init_default(self, name, _):
        raise ValueError(
            f"cannot infer how to initialize {name!r}: its name does not end in weight, bias, "
            "gamma or beta; give the parameter its own initializer (init=...)"
        )

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self._kwargs == other._kwargs

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self._kwargs.items())
        return f"{type(self).__name__}({options})"


_register = registry.get_register_func(Initializer, "initializer")
alias: Alias = registry.get_alias_func(Initializer, "initializer")
create: Callable[..., Initializer] = registry.get_create_func(Initializer, "initializer")


def register(klass: Class) -> Class:
    """Registers a subclass of Initializer under its lower-case name; a decorator.

    Examples
    --------
    >>> @mx.init.register
    ... class Threes(mx.init.Initializer):
    ...     def _init_weight(self, name, array):
    ...         array[:] = 3
    >>> weight = gluon.Parameter("weight", shape=(2,), init="threes")
    >>> weight.initialize()
    >>> weight.data().asnumpy()
    array([3., 3.], dtype=float32)
    """
    return _register(klass)


class Load:
    """Copies values from `param`, a dict of arrays or the path of a file of arrays.

    `default_init` fills parameters without a value. Raises ValueError if a shape differs, or if a
    name is missing and there is no `default_init`.

    Examples
    --------
    >>> init = mx.init.Load({"a_weight": nd.ones(2)}, default_init=mx.init.Zero())
    >>> array = nd.zeros(2)
    >>> init("a_weight", array)
    >>> array.asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        param: str | dict[str, NDArray],
        default_init: Callable[[str, NDArray], Any] | None = None,
        verbose: bool = False,
    ) -> None:
        if isinstance(param, str):
            param = ndarray.load(param)
        if not isinstance(param, dict):
            raise TypeError(
                "param must be a dict of names and arrays, or the path of such a file, got "
                f"{type(param).__name__}"
            )
        self.param: dict[str, NDArray] = {
            name[4:] if name.startswith(("arg:", "aux:")) else name: array
            for name, array in param.items()
        }
        self.default_init = default_init
        self.verbose = verbose

    def __repr__(self) -> str:
        default = "" if self.default_init is None else f", default_init={self.default_init!r}"
        return f"{type(self).__name__}(arrays: {len(self.param)}{default})"

    def __call__(self, name: str, arr: NDArray) -> None:
        source = self.param.get(name)
        if source is not None:
            if tuple(arr.shape) != tuple(source.shape):
                raise ValueError(
                    f"{name} has shape {tuple(arr.shape)}, but the loaded array of that name "
                    f"has {tuple(source.shape)}"
                )
            arr[...] = source.as_in_context(arr.context).astype(arr.dtype)
        elif self.default_init is not None:
            self.default_init(name, arr)
        else:
            raise ValueError(
                f"{name} is not among the {len(self.param)} loaded arrays, and no default_init is "
                "given"
            )
        if self.verbose:
            logging.info(
                "Initialized %s by %s", name, "loading" if source is not None else "default"
            )


class Mixed(Initializer):
    """Selects the initializer by name: the first regular expression in `patterns` that matches the
    start of the name.

    Examples
    --------
    >>> init = mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.Uniform(0.1)])
    >>> array = nd.ones(2)
    >>> init(mx.init.InitDesc("a_bias"), array)
    >>> array.asnumpy().tolist()
    [0.0, 0.0]
    """

    def __init__(
        self, patterns: Sequence[str], initializers: Sequence[Callable[[str, NDArray], Any]]
    ) -> None:
        if len(patterns) != len(initializers):
            raise ValueError(
                f"the number of patterns, {len(patterns)}, must equal the number of "
                f"initializers, got {len(initializers)}"
            )
        super().__init__()
        self.map: list[tuple[re.Pattern[str], Any]] = [
            (re.compile(pattern), init) for pattern, init in zip(patterns, initializers)
        ]

    def __repr__(self) -> str:
        patterns = [pattern.pattern for pattern, _ in self.map]
        return f"{type(self).__name__}({patterns!r}, {[init for _, init in self.map]!r})"

    def __call__(self, name: str, arr: NDArray) -> None:
        self._of(name)(name, arr)

    def _init_weight(self, name, array):
        chosen = self._of(name)
        (chosen._init_weight if isinstance(chosen, Initializer) else chosen)(name, array)

    def _of(self, name):
        for pattern, init in self.map:
            if pattern.match(name):
                return init
        raise ValueError(
            f"{name!r} matches none of the patterns; add '.*' with a default initializer at the end"
        )


@register
@alias("zeros")
class Zero(Initializer):
    """Fills with zeros.

    Examples
    --------
    >>> mx.init.create("zeros")
    Zero()
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, _, arr):
        arr[...] = 0


@register
@alias("ones")
class One(Initializer):
    """Fills with ones.

    Examples
    --------
    >>> mx.init.create("ones")
    One()
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, _, arr):
        arr[...] = 1


@register
class Constant(Initializer):
    """Fills with one value, or with an array of the parameter's shape (or one that broadcasts to
    it).

    Examples
    --------
    >>> mx.init.Constant(3)
    Constant(value=3)
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, _, arr):
        arr[...] = self.value

    def dumps(self) -> str:
        import json

        value = self.value
        if not np.isscalar(value):
            value = value if isinstance(value, (np.ndarray, list, tuple)) else value.asnumpy()
            value = np.asarray(value).tolist()
        self._kwargs["value"] = value  # converted to a form that JSON supports
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self.dumps() == other.dumps()

    def __hash__(self) -> int:
        return object.__hash__(self)


@register
class Uniform(Initializer):
    """Draws from the uniform distribution over [-scale, scale).

    Examples
    --------
    >>> mx.init.Uniform(0.1)
    Uniform(scale=0.1)
    """

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        domain.at_least(0, scale=scale)
        self.scale = scale

    def _init_weight(self, _, arr):
        random.uniform(-self.scale, self.scale, arr.shape, out=arr)


@register
class Normal(Initializer):
    """Draws from the normal distribution with mean 0 and standard deviation `sigma`.

    Examples
    --------
    >>> mx.init.Normal(0.02)
    Normal(sigma=0.02)
    """

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        domain.at_least(0, sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, _, arr):
        random.normal(0, self.sigma, arr.shape, out=arr)


@register
class Orthogonal(Initializer):
    """Fills with `scale` times a matrix with orthonormal rows or columns.

    The matrix is from the decomposition of a random one ("uniform" or "normal"). Axes after the
    first are flattened.

    Examples
    --------
    >>> mx.init.Orthogonal()
    Orthogonal(scale=1.414, rand_type='uniform')
    """

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        if rand_type not in ("uniform", "normal"):
            raise ValueError(f"rand_type must be 'uniform' or 'normal', got {rand_type!r}")
        domain.number(scale=scale)
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale = scale
        self.rand_type = rand_type

    def _init_weight(self, _, arr):
        shape = (arr.shape[0], int(np.prod(arr.shape[1:])))
        draw = (
            random.uniform(-1.0, 1.0, shape=shape)
            if self.rand_type == "uniform"
            else random.normal(0.0, 1.0, shape=shape)
        )
        left, _, right = np.linalg.svd(draw.asnumpy(), full_matrices=False)
        chosen = left if left.shape == shape else right
        arr[...] = (self.scale * chosen).reshape(arr.shape)


@register
class Xavier(Initializer):
    """Scales random values by the numbers of units a weight connects: sqrt(magnitude / factor).

    The weight's shape is (units out, units in, kernel...). `rnd_type` is "uniform" (within plus or
    minus the scale) or "gaussian" (the scale is the standard deviation). `factor_type` is "in",
    "out", or "avg" for the average of both. Raises ValueError for arrays with fewer than two
    dimensions.

    Examples
    --------
    >>> mx.init.Xavier(magnitude=2.24)
    Xavier(rnd_type='uniform', factor_type='avg', magnitude=2.24)
    """

    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None:
        if rnd_type not in ("uniform", "gaussian"):
            raise ValueError(f"rnd_type must be 'uniform' or 'gaussian', got {rnd_type!r}")
        if factor_type not in ("avg", "in", "out"):
            raise ValueError(f"factor_type must be 'avg', 'in' or 'out', got {factor_type!r}")
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type = rnd_type
        self.factor_type = factor_type
        domain.at_least(0, magnitude=magnitude)
        self.magnitude: float = float(magnitude)

    def _init_weight(self, name, arr):
        shape = arr.shape
        if len(shape) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least two dimensions to count inputs and "
                f"outputs; {name} has shape {shape}"
            )
        kernel = float(np.prod(shape[2:])) if len(shape) > 2 else 1.0
        fan_in, fan_out = shape[1] * kernel, shape[0] * kernel
        factor = {"avg": (fan_in + fan_out) / 2.0, "in": fan_in, "out": fan_out}[self.factor_type]
        if factor == 0:  # only for an empty array
            return
        scale = float(np.sqrt(self.magnitude / factor))
        if self.rnd_type == "uniform":
            random.uniform(-scale, scale, shape, out=arr)
        else:
            random.normal(0, scale, shape, out=arr)


@register
class MSRAPrelu(Xavier):
    """Gaussian Xavier for layers followed by a PReLU, or by a ReLU with `slope` 0.

    The magnitude is 2 / (1 + slope ** 2).

    Examples
    --------
    >>> mx.init.MSRAPrelu()
    MSRAPrelu(factor_type='avg', slope=0.25)
    """

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        domain.number(slope=slope)
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
class Bilinear(Initializer):
    """Fills the 4-d weights of a transposed convolution that upsamples by bilinear interpolation.

    Examples
    --------
    >>> init = mx.init.Bilinear()
    >>> layer = nn.Conv2DTranspose(1, 4, strides=2, padding=1, weight_initializer=init)
    >>> layer.initialize()
    >>> layer(nd.ones((1, 1, 3, 3))).shape
    (1, 1, 6, 6)
    """

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, name, arr):
        self._init_bilinear(name, arr)


@register
class LSTMBias(Initializer):
    """Fills an LSTM's bias with zeros, except `forget_bias` for the forget gate (second quarter).

    Examples
    --------
    >>> array = nd.zeros(8)
    >>> mx.init.LSTMBias(1.0)(mx.init.InitDesc("weight"), array)
    >>> array.asnumpy().tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        domain.number(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, _, arr):
        hidden = arr.shape[0] // 4
        arr[...] = 0.0
        arr[hidden : 2 * hidden] = self.forget_bias


_GATES = {
    "rnn_relu": ("",),
    "rnn_tanh": ("",),
    "lstm": ("_i", "_f", "_c", "_o"),
    "gru": ("_r", "_z", "_o"),
}


@register
class FusedRNN(Initializer):
    """Fills the flat parameter vector of the `RNN` operator weight by weight.

    `init` (an initializer, its `dumps()` text, or None for the net's own) fills each weight and
    bias under a name such as "l0_i2h_f_weight"; the forget gates of an LSTM get `forget_bias`.
    `mode` is "rnn_relu", "rnn_tanh", "lstm" or "gru".

    Examples
    --------
    >>> array = nd.zeros(3 * 4 * (5 + 4 + 2))
    >>> init = mx.init.FusedRNN(mx.init.One(), num_hidden=4, num_layers=1, mode="gru")
    >>> init(mx.init.InitDesc("weight"), array)
    >>> array.sum().asscalar().item()  # biases are zero
    108.0
    """

    def __init__(
        self,
        init: Init | None,
        num_hidden: int,
        num_layers: int,
        mode: str,
        bidirectional: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        if isinstance(init, str):
            init = create(init)
        if mode not in _GATES:
            raise ValueError(f"mode must be one of {', '.join(_GATES)}, got {mode!r}")
        super().__init__(
            init=init.dumps() if init is not None else None,
            num_hidden=num_hidden,
            num_layers=num_layers,
            mode=mode,
            bidirectional=bidirectional,
            forget_bias=forget_bias,
        )
        self._init = init
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode = mode
        self._bidirectional = bidirectional
        self._forget_bias = forget_bias

    def _pieces(self, size):
        """Yields (name, shape) of each weight and bias in the order of the flat vector.

        All weights come before all biases.
        """
        hidden, layers, gates = self._num_hidden, self._num_layers, _GATES[self._mode]
        directions = ("l", "r") if self._bidirectional else ("l",)
        count = len(directions)
        # Only the size of the first layer's input weights depends on the number of inputs.
        per_direction = len(gates) * hidden
        rest = per_direction * count * (hidden + 2 + (layers - 1) * (hidden * count + hidden + 2))
        inputs, remainder = divmod(size - rest, per_direction * count)
        if remainder or inputs <= 0:
            raise ValueError(
                f"{size} parameters do not fit {layers} layers of {hidden} units, mode "
                f"{self._mode}, {count} direction(s)"
            )
        for kind in ("weight", "bias"):
            for layer in range(layers):
                for direction in directions:
                    for group, width in (
                        ("i2h", inputs if layer == 0 else hidden * count),
                        ("h2h", hidden),
                    ):
                        for gate in gates:
                            yield (
                                f"{direction}{layer}_{group}{gate}_{kind}",
                                (hidden, width) if kind == "weight" else (hidden,),
                            )

    def _init_weight(self, desc, arr):
        pieces = []
        for name, shape in self._pieces(arr.size):
            piece = ndarray.empty(shape, ctx=arr.context, dtype=arr.dtype)
            piece_desc = InitDesc(name, global_init=getattr(desc, "global_init", None))
            if self._mode == "lstm" and name.endswith("_f_bias"):
                piece[:] = self._forget_bias
            else:
                init = self._init if self._init is not None else piece_desc.global_init
                if init is None:
                    raise ValueError(
                        f"FusedRNN without its own initializer cannot fill {desc}: no global "
                        "initializer is given"
                    )
                init(piece_desc, piece)
            pieces.append(piece.reshape((-1,)))
        arr[...] = ndarray.concat(*pieces, dim=0).reshape(arr.shape)

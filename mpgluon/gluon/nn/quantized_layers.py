"""Layers with packed weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import initializer, ndarray as nd
from ..._core import dtype_name
from ..._internal import domain
from ..._internal.hints import absent
from ...base import MXNetValueError, is_floating
from ..block import HybridBlock
from .activations import Activation, after
from .basic_layers import Dense

if TYPE_CHECKING:
    from ..._core import NDArray
    from ..._internal.types import DType, Layer
    from ..parameter import Parameter
else:
    Layer = HybridBlock

__all__ = ["QuantizedDense"]

# Elements and bytes of a block. A row consists of whole blocks.
FORMATS = {
    "int8": (1, 1),
    "int4": (2, 1),
    "nf4": (2, 1),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_k": (256, 144),
    "q6_k": (256, 210),
}
GROUPED = ("int8", "int4", "nf4")  # formats with arrays of scales
# The values of nf4. kernels/common/weight_formats.h has the same table.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_SCALE_DTYPES = ("float32", "float16", "bfloat16")
_ZERO_BYTES = {"int4": 0x88, "nf4": 0x77}  # bytes of two elements that are 0


def _float_name(dtype):
    """Returns the name of a float dtype. Other dtypes have no products with packed weights."""
    if not is_floating(dtype):
        raise MXNetValueError(
            f"QuantizedDense: dtype must be a float dtype, not {dtype_name(dtype)!r}; data stay "
            "floats, and `format` decides the bits of the weight"
        )
    return dtype_name(dtype)


class _Counting(initializer.Initializer):
    """Initializes an array with 0, 1, 2, ...."""

    def _init_weight(self, name: Any, arr: Any) -> None:
        arr[:] = nd.arange(arr.size, ctx=arr.context, dtype=arr.dtype)


class QuantizedDense(Layer):
    """A `Dense` whose weight is packed into 4 to 8 bits an element. Only its bias can be trained.

    ``mx.contrib.quantization.quantize_weights`` creates these layers from the layers of a network.
    Without it, the weight is 0 until the parameters are set or loaded. ``cast`` changes the bias
    and the dtype of `dequantized`. It keeps `packed`, `scales` and `zeros`, which work with data of
    any float dtype.

    Parameters
    ----------
    units : int
        Size of the output.
    in_units : int
        Size of the input.
    format : {'int8', 'int4', 'nf4', 'q8_0', 'q4_0', 'q4_k', 'q6_k'}
        The format of the parameter `packed`; see ``nd.contrib.quantized_dot``.
    group : int, default 0
        How many adjacent elements of a row share a scale; 0 for the whole row.
    use_zeros : bool, default False
        Whether int4 has the parameter `zeros`. Without it, all zeros are 8.
    use_bias : bool, default True
        Whether to add `bias` to the product.
    activation : str, optional
        See `Activation`.
    flatten : bool, default True
        Whether to flatten all axes of the input except the first, as in `Dense`.
    use_order : bool, default False
        Whether there is the parameter `order`, int32 (in_units): element i of a row of the weight
        is multiplied by element order[i] of the data.
    dtype : str or numpy.dtype, default 'float32'
        Data type of the bias.
    scale_dtype : str or numpy.dtype, default 'float32'
        Data type of scales and zeros: float32, float16 or bfloat16.

    Examples
    --------
    >>> layer = nn.QuantizedDense(3, 64, format='int4', group=32)
    >>> layer.initialize()
    >>> layer.packed.shape, layer.scales.shape, layer(nd.ones((2, 64))).shape
    ((3, 32), (3, 2), (2, 3))
    """

    def __init__(
        self,
        units: int,
        in_units: int,
        format: str = "int8",
        group: int = 0,
        use_zeros: bool = False,
        use_bias: bool = True,
        activation: str | None = None,
        flatten: bool = True,
        use_order: bool = False,
        dtype: DType = "float32",
        scale_dtype: DType = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        domain.size(1, units=units)
        domain.size(1, in_units=in_units)
        domain.size(0, group=group)
        if format not in FORMATS:
            raise MXNetValueError(
                f"QuantizedDense: format must be one of {', '.join(FORMATS)}, not {format!r}"
            )
        block, size = FORMATS[format]
        if in_units % block:
            raise MXNetValueError(
                f"QuantizedDense: in_units must be a multiple of {block} for format {format!r}, "
                f"not {in_units}"
            )
        grouped = format in GROUPED
        if group and (not grouped or in_units % group):
            raise MXNetValueError(
                f"QuantizedDense: group must divide in_units ({in_units}), not {group}"
                if grouped
                else f"QuantizedDense: group must be 0 for format {format!r}, not {group}"
            )
        if use_zeros and format != "int4":
            raise MXNetValueError(f"QuantizedDense: only 'int4' has zeros, not {format!r}")
        if dtype_name(scale_dtype) not in _SCALE_DTYPES:
            raise MXNetValueError(
                f"QuantizedDense: scale_dtype must be one of {', '.join(_SCALE_DTYPES)}, not "
                f"{dtype_name(scale_dtype)!r}"
            )
        self._units, self._in_units, self._flatten = units, in_units, flatten
        self._format, self._group, self._dtype = format, group, _float_name(dtype)
        with self.name_scope():
            self.packed: Parameter = self._fixed(
                "packed",
                (units, in_units // block * size),
                "int8" if format == "int8" else "uint8",
                initializer.Constant(_ZERO_BYTES.get(format, 0)),
            )
            groups = (units, in_units // (group or in_units))
            self.scales: Parameter | None = None
            if grouped:
                self.scales = self._fixed("scales", groups, scale_dtype, "ones")
            self.zeros: Parameter | None = None
            if use_zeros:
                self.zeros = self._fixed("zeros", groups, scale_dtype, initializer.Constant(8))
            self.order: Parameter | None = None
            if use_order:
                self.order = self._fixed("order", (in_units,), "int32", _Counting())
            self.bias: Parameter | None = None
            if use_bias:
                self.bias = self.params.get("bias", shape=(units,), init="zeros", dtype=dtype)
            self.act: Activation | None = after(type(self).__name__, activation)

    def _fixed(self, name, shape, dtype, init):
        """Returns a new parameter without a gradient."""
        param = self.params.get(name, shape=shape, dtype=dtype, init=init, differentiable=False)
        param.fixed = True
        return param

    @property
    def units(self) -> int:
        """Size of the output."""
        return self._units

    @property
    def in_units(self) -> int:
        """Size of the input."""
        return self._in_units

    @property
    def format(self) -> str:
        """Format of `packed`."""
        return self._format

    @property
    def group(self) -> int:
        """How many adjacent elements of a row share a scale; 0 for the whole row."""
        return self._group

    @property
    def dtype(self) -> str:
        """Data type of `dequantized`, which `cast` changes."""
        return self._dtype

    def cast(self, dtype: DType) -> None:
        name = _float_name(dtype)
        if self.bias is not None:
            self.bias.cast(dtype)
        if self.act is not None:
            self.act.cast(dtype)
        self._dtype = name
        self._clear_compiled()

    def _options(self):
        return {
            "format": self._format,
            "group": self._group,
            "units": self._units,
            "in_units": self._in_units,
        }

    def hybrid_forward(
        self,
        F: Any,
        x: Any,
        packed: Any,
        scales: Any = None,
        zeros: Any = None,
        order: Any = None,
        bias: Any = None,
        **adapters: Any,
    ) -> Any:
        if self._flatten:
            x = F.Flatten(x)
        data = x if order is None else F.take(x, order, axis=-1)
        out = F.contrib.quantized_dot(
            data, packed, scales, zeros, bias, **self._options(), name="fwd"
        )
        if self._adapters is not None:
            weight = None
            if self._adapters.needs_weight:
                weight = self._unpacked(F, packed, scales, zeros, order, self._dtype)
            out = self._adapters.dense(F, self, x, out, weight, bias, adapters, self._flatten)
        return out if self.act is None else self.act(out)

    def _unpacked(self, F, packed, scales, zeros, order, dtype):
        """Returns the weight (units, in_units) for data in its own order."""
        weight = F.contrib.dequantize_weight(packed, scales, zeros, **self._options(), dtype=dtype)
        if order is None:
            return weight
        return F.take(weight, F.argsort(order, dtype="int32"), axis=1)

    def dequantized(self, dtype: DType | None = None) -> NDArray:
        """Returns the weight (units, in_units) as floats, for data in its own order.

        Parameters
        ----------
        dtype : str or numpy.dtype, optional
            Data type of the result; by default the layer's `dtype`.

        Examples
        --------
        >>> layer = nn.QuantizedDense(2, 4)
        >>> layer.initialize()
        >>> layer.dequantized().asnumpy().tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
        """
        arrays = [
            param if param is None else param.reduced()
            for param in (self.packed, self.scales, self.zeros, self.order)
        ]
        return self._unpacked(nd, *arrays, dtype_name(dtype or self._dtype))

    def __repr__(self) -> str:
        group = f", group={self._group}" if self._group else ""
        return (
            f"{type(self).__name__}({self._in_units} -> {self._units}, {self._format}{group}, "
            f"{self.act or 'linear'})"
        )


absent(
    QuantizedDense,
    {"weight": "layer.dequantized() for its values as floats, or the parameter layer.packed"},
)


def packed_like(layer: Dense, **options: Any) -> QuantizedDense:
    """Returns a QuantizedDense in place of a Dense, with its bias and without other values.
    `options` are further options of QuantizedDense."""
    units, in_units = layer.weight.shape
    new = QuantizedDense(
        units,
        in_units,
        use_bias=False,
        flatten=layer._flatten,
        dtype=layer.weight.dtype,
        prefix=layer.prefix,
        **options,
    )
    return _with_bias_of(layer, new)


def float_like(layer: QuantizedDense, weight: NDArray) -> Dense:
    """Returns a Dense with a weight in place of a QuantizedDense, with its bias."""
    new = Dense(
        layer.units,
        use_bias=False,
        flatten=layer._flatten,
        dtype=layer.dtype,
        in_units=layer.in_units,
        prefix=layer.prefix,
    )
    new.weight.initialize(ctx=layer.packed.list_ctx())
    new.weight.set_data(weight.astype(layer.dtype))
    new.weight.placed, new.weight.floating = layer.packed.placed, layer.packed.floating
    return _with_bias_of(layer, new)


def _with_bias_of(old, new):
    new.bias, new.act = old.bias, old.act
    if old.bias is not None:
        new.params.update({old.bias.name: old.bias})
    return new

"""`from_config` and `from_pretrained`: networks for models of Hugging Face."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .... import autograd
from ...._core import dtype_name
from ...._internal.hints import unknown_option_of
from ....base import MXNetError
from ....context import Context
from ..._huggingface.checkpoint import Checkpoint, config_and_source, has_few_bits, is_gguf
from ..._huggingface.layers import keep_quantized, round_weights
from ..._huggingface.load import load, mapped
from ..._tree import huggingface_of, set_huggingface
from . import _decoders, _encoders, _t5
from ._config import Config

if TYPE_CHECKING:
    from typing_extensions import Never

    from ...._internal.types import DType
    from ..._huggingface.entries import Entry
    from ...block import HybridBlock

__all__ = ["from_config", "from_pretrained"]

_FLOATS = {"float16", "bfloat16", "float32", "float64"}

# model_type -> function that returns (network, map of weights)
_CREATORS = {
    **dict.fromkeys(_decoders.KINDS, _decoders.create),
    **_encoders.CREATORS,
    "t5": _t5.create,
}


def from_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> HybridBlock:
    """Creates the network for a config of Hugging Face, without values.

    Call ``net.initialize()`` for random values, or ``net.load_parameters(folder,
    format="huggingface")``.

    Parameters
    ----------
    config : dict or str
        Contents of ``config.json``, or the path of this file, of its folder or of a GGUF file. If
        weights are stored in few bits, their layers are `nn.QuantizedDense`. This depends on the
        files, so they must exist.

    Returns
    -------
    HybridBlock

    Raises
    ------
    MXNetError
        If the architecture is not supported, or if a key that may change the results is not
        supported. The message names the key.

    Examples
    --------
    >>> net = gluon.model_zoo.text.from_config({
    ...     "model_type": "llama",
    ...     "hidden_size": 16,
    ...     "intermediate_size": 24,
    ...     "num_hidden_layers": 2,
    ...     "num_attention_heads": 4,
    ...     "num_key_value_heads": 2,
    ...     "vocab_size": 32,
    ... })
    >>> net.initialize()
    >>> net(nd.zeros((1, 5), dtype="int32")).shape
    (1, 5, 32)
    """
    if isinstance(config, (str, os.PathLike)):
        return _network(os.fspath(config), True)[0]
    return _created(dict(config), "config")[0]


def _network(path: str, keep: bool) -> tuple[HybridBlock, Checkpoint | None]:
    """Returns the network for the config at a path, and its files if they were opened. If `keep` is
    true, weights that are stored in few bits stay so."""
    # The header of a GGUF file holds the config and the vocabulary. It is read once.
    weights = Checkpoint(path) if is_gguf(path) else None
    values, source = config_and_source(path) if weights is None else weights.config_and_source()
    values.pop("quantization_config", None)
    net, entries = _created(values, source)
    if keep and weights is None and has_few_bits(path):
        is_config = os.path.basename(path) == "config.json"
        weights = Checkpoint(os.path.dirname(path) or "." if is_config else path)
    if keep and weights is not None:
        keep_quantized(net, mapped(weights.arrays, entries))
    return net, weights


def _created(values: dict[str, Any], source: str) -> tuple[HybridBlock, list[Entry]]:
    """Returns the network for the contents of a config, and the map of its weights."""
    kind = values.get("model_type")
    if kind not in _CREATORS:
        raise MXNetError(
            f"{source}: model_type = {kind!r} is not supported; the types are "
            f"{', '.join(sorted(_CREATORS))}"
        )
    net, entries = _CREATORS[kind](Config(values, source), kind)
    set_huggingface(net, entries, values)
    return net, entries


def from_pretrained(
    folder: str | os.PathLike[str],
    ctx: Any = None,
    dtype: DType | None = None,
    quantize: str | Mapping[str, Any] | bool | None = None,
    memory: Mapping[Context, int | str] | Mapping[str, int | str] | None = None,
    grad_req: str = "write",
    verbose: bool = False,
    progress: bool | None = None,
    **kwargs: Never,
) -> HybridBlock:
    """Loads a model of Hugging Face from a local folder with ``config.json`` and safetensors, or a
    model of llama.cpp from a GGUF file.

    Each array is copied straight to its device, so the host holds one piece of an array at a time.
    Dense layers whose weights are stored in few bits (GGUF, GPTQ, AWQ, compressed-tensors and
    bitsandbytes) become `nn.QuantizedDense` with the stored values.

    Parameters
    ----------
    folder : str
        The folder, or a file ``*.gguf``. Nothing is downloaded.
    ctx : Context, list of Context, dict, Mesh or Plan, optional
        The device, or a placement (see `Block.place`): a list divides the layers over devices by
        their bytes. By default the current device.
    dtype : str, optional
        Dtype of the parameters. By default, that of the files, or 'float32' if they have several.
        'float32' is more precise for training files in half precision. Packed weights do not
        change.
    quantize : str, dict or False, optional
        Format of `nn.QuantizedDense`, such as 'int8', or the options format, group, layers, skip
        and use_zeros of ``mx.contrib.quantization.quantize_weights``, such as ``{'format': 'int4',
        'skip': 'head'}``. Float weights are rounded one at a time while they are read, with the
        same result. False dequantizes weights that are stored in few bits.
    memory : dict of Context to int or str, optional
        Largest number of bytes ('20GiB') of parameters on each device of a list (see
        `parallel.divide`).
    grad_req : {'write', 'add', 'null'}, default 'write'
        'null' freezes the parameters. Otherwise, the first training step allocates gradients, which
        take as much memory as the parameters.
    verbose : bool, default False
        Whether to print the placement.
    progress : bool, optional
        Whether to show a progress bar. By default, if stderr is a terminal and loading takes longer
        than two seconds.

    Returns
    -------
    HybridBlock

    Raises
    ------
    MXNetError
        If the folder is incomplete or damaged, or if the network would differ from the model.
    ValueError
        If a list has more devices than the network has layers, if these do not fit into `memory`,
        or if `dtype` is not a float dtype.
    """
    if kwargs:
        known = [*inspect.signature(from_pretrained).parameters][1:-1]
        raise unknown_option_of("from_pretrained", kwargs, known)
    path = os.fspath(folder)
    if not os.path.isdir(path) and not is_gguf(path):
        raise MXNetError(
            f"from_pretrained: '{path}' is neither a local folder nor a GGUF file; download the "
            "model first, for example with huggingface_hub.snapshot_download"
        )
    if quantize is True:
        raise ValueError("from_pretrained: quantize must name a format, such as 'int8', not True")
    rounds = quantize is not None and quantize is not False
    if rounds and not isinstance(quantize, (str, Mapping)):
        raise TypeError(
            f"from_pretrained: quantize must be a format, options or False, not {quantize!r}"
        )
    if dtype is not None and dtype_name(dtype) not in _FLOATS:
        raise ValueError(
            f"from_pretrained: dtype must be one of {', '.join(sorted(_FLOATS))}, not "
            f"{dtype_name(dtype)!r}; quantize='int8' or 'int4' loads weights in few bits"
        )
    net, weights = _network(path, quantize is not False)
    if weights is None:
        weights = Checkpoint(path)
    net.cast(_dtype_of(weights) if dtype is None else dtype_name(dtype))
    if rounds:
        round_weights(net, **({"format": quantize} if isinstance(quantize, str) else quantize))
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = grad_req
    if memory is not None:
        from ....parallel import divide  # the package imports this module

        if not isinstance(ctx, (list, tuple)):
            raise TypeError("from_pretrained: memory needs a list of devices, ctx=[...]")
        ctx = divide(net, ctx, memory)
    placement = None
    if ctx is not None and not isinstance(ctx, Context):
        # A Plan can only place networks with values, but its placement needs none.
        placement = getattr(ctx, "placement", ctx)
        net.place(placement, verbose=verbose)
        ctx = None
    with autograd.pause():
        entries, _ = huggingface_of(net)
        load(net, weights, entries, ctx, cast_dtype=dtype is not None, progress=progress)
    if isinstance(placement, dict):
        net.place(placement, verbose=False)  # pins layers that no key matches to their devices
    return net


def _dtype_of(weights):
    """Returns the dtype of the float arrays, or one that holds the values of all of them. Arrays in
    few bits have the dtype of their scales."""
    found = {array.dtype for array in weights.arrays.values()} & _FLOATS
    if not found:
        raise MXNetError(f"from_pretrained: '{weights.path}' holds no weights")
    if len(found) == 1:
        return found.pop()
    return "float64" if "float64" in found else "float32"

"""`from_config` and `from_pretrained`: networks for models of Hugging Face."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .... import autograd
from ...._core import dtype_name
from ...._internal.hints import unknown_option_of
from ....base import MXNetError
from ....context import Context
from ....parallel import divide
from ..._huggingface.files import Weights, read_json
from ..._huggingface.load import load
from ..._tree import huggingface_of, set_huggingface
from . import _decoders, _encoders, _t5
from ._config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Never

    from ...._internal.types import DType
    from ...block import HybridBlock

__all__ = ["from_config", "from_pretrained"]

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
        Contents of ``config.json``, or the path of this file or of its folder.

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
        path = os.fspath(config)
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        values, source = read_json(path, "config"), f"config '{path}'"
    else:
        values, source = dict(config), "config"
    kind = values.get("model_type")
    if kind not in _CREATORS:
        raise MXNetError(
            f"{source}: model_type = {kind!r} is not supported; the types are "
            f"{', '.join(sorted(_CREATORS))}"
        )
    net, entries = _CREATORS[kind](Config(values, source), kind)
    set_huggingface(net, entries, values)
    return net


def from_pretrained(
    folder: str | os.PathLike[str],
    ctx: Any = None,
    dtype: DType | None = None,
    memory: Mapping[Context, int] | None = None,
    grad_req: str = "write",
    verbose: bool = False,
    progress: bool | None = None,
    **kwargs: Never,
) -> HybridBlock:
    """Loads a model of Hugging Face from a local folder with ``config.json`` and safetensors.

    Each array is copied straight to its device, so the host holds one piece of an array at a time.

    Parameters
    ----------
    folder : str
        The folder. Nothing is downloaded.
    ctx : Context, list of Context, dict, Mesh or Plan, optional
        The device, or a placement (see `Block.place`): a list divides the layers over devices by
        their bytes. By default the current device.
    dtype : str, optional
        Dtype of the parameters. By default, that of the files, or 'float32' if they have several.
        'float32' is more precise for training files in half precision.
    memory : dict of Context to int, optional
        Largest number of bytes of parameters on each device of a list (see `parallel.divide`).
    grad_req : {'write', 'add', 'null'}, default 'write'
        'null' allocates no gradients, which take as much memory as the parameters. Generation and
        adapters need none.
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
        If a list has more devices than the network has layers, or if these do not fit into
        `memory`.
    """
    if kwargs:
        known = ("ctx", "dtype", "memory", "grad_req", "verbose", "progress")
        raise unknown_option_of("from_pretrained", kwargs, known)
    folder = os.fspath(folder)
    if not os.path.isdir(folder):
        raise MXNetError(
            f"from_pretrained: '{folder}' is not a local folder; download the model first, for "
            "example with huggingface_hub.snapshot_download"
        )
    net = from_config(folder)
    net.cast(_dtype_of(folder) if dtype is None else dtype_name(dtype))
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.grad_req = grad_req
    if memory is not None:
        if not isinstance(ctx, (list, tuple)):
            raise TypeError("from_pretrained: memory needs a list of devices, ctx=[...]")
        ctx = divide(net, ctx, memory)
    if ctx is not None and not isinstance(ctx, Context):
        # A Plan can only place networks with values, but its placement needs none.
        net.place(getattr(ctx, "placement", ctx), verbose=verbose)
        ctx = None
    with autograd.pause():
        entries, _ = huggingface_of(net)
        load(net, folder, entries, ctx, cast_dtype=dtype is not None, progress=progress)
    return net


def _dtype_of(folder):
    """Returns the dtype of a folder's arrays, or one that holds the values of all of them."""
    found = {array.dtype for array in Weights(folder).arrays.values()}
    if not found:
        raise MXNetError(f"from_pretrained: '{folder}' holds no weights")
    if len(found) == 1:
        return found.pop()
    return "float64" if "float64" in found else "float32"

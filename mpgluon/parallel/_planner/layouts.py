"""`layouts`: how a network can be divided over devices, and the memory that each way needs."""

from __future__ import annotations

import copy
import math
import warnings
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd, optimizer as opt
from ..._internal import domain, graph_breaks
from ...base import MXNetError, itemsize
from ...context import Context, cpu, gpu_memory_info
from ...gluon._tree import refuse_partitioned
from ...gluon.block import HybridBlock
from ...optimizer._nested_states import arrays_of
from .._tensor_parallel.parameters import HomeParameter
from .layout import Layout, Layouts
from .layout_search import Study
from .rank_measurement import limits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...ndarray import NDArray
    from ...optimizer import Optimizer

__all__ = ["Layout", "Layouts", "layouts"]

_MOST_DEVICES = 64
_PLAIN = "pass the network as it was created, before it is divided"


def layouts(
    net: HybridBlock,
    sample: NDArray | Sequence[NDArray],
    memory: Sequence[float | str] | dict[Context, float | str] | None = None,
    *,
    devices: Sequence[Context] | None = None,
    plan: dict[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    labels: NDArray | Sequence[NDArray] = (),
    optimizer: str | Optimizer = "adam",
    optimizer_params: dict[str, Any] | None = None,
    train: bool = True,
    progress: bool | None = None,
) -> Layouts:
    """Answers if a network fits on devices, and how: compares the ways to divide it over a mesh
    (`Mesh.partition`). Nothing runs, and the network needs no values, so neither the network nor
    the devices must exist in memory yet.

    Each layout is compiled for a copy of the network without values, which gives the bytes of its
    programs on each device. Layouts over the axes ``data``, ``shard`` and ``model`` are tried, with
    two axes at most. Networks of tokens are also cut along ``context``, the experts of `nn.MoE`
    along ``expert``, and networks whose blocks run in sequence along ``stage``, with a 1F1B
    pipeline. Layouts without stages that don't fit are tried again with recomputation.

    Parameters
    ----------
    net : HybridBlock
        Network, initialized or not. It stays unchanged.
    sample : NDArray or list of NDArray
        A whole batch of inputs. Only shapes and dtypes matter.
    memory : list or dict of numbers or str, optional
        Bytes on each device, such as ``['24GB', '12GiB']``, or by Context. By default, the limits
        of `devices` (`mx.context.set_memory_limit`), or the memory of GPUs.
    devices : list of Context, optional
        Devices; by default as many CPU devices as `memory` has entries, in place of others.
    plan : dict, optional
        The part of the plan for the axis ``model``, as for `Mesh.partition`. By default, it is
        found by a search: the pattern that saves most is added as long as it saves more than it
        sends.
    loss : callable, optional
        Function ``loss(outputs, *labels)``. Without it, the gradients of the outputs are given.
    labels : NDArray or list of NDArray
        A whole batch of the loss's arguments after the outputs.
    optimizer : str or Optimizer, default 'adam'
        Optimizer, whose states count as memory.
    optimizer_params : dict, optional
        Arguments of an optimizer that is given by name.
    train : bool, default True
        False for prediction: without gradients and states.
    progress : bool, optional
        Whether to show a progress bar; by default on terminals.

    Returns
    -------
    Layouts

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid.
    MXNetError
        If the network is placed or partitioned, or cannot be compiled as a whole.

    Examples
    --------
    >>> net = mx.gluon.nn.HybridSequential()
    >>> net.add(mx.gluon.nn.Dense(512, in_units=256), mx.gluon.nn.Dense(256, in_units=512))
    >>> x = mx.nd.zeros((32, 256))
    >>> found = mx.parallel.layouts(net, x, ['3MB', '3MB'], progress=False)
    >>> found.best.axes, found.best.plan
    ({'model': 2}, {'0.weight': ('model',), '1.weight': (None, 'model')})
    """
    if not isinstance(net, HybridBlock):
        raise TypeError(f"layouts: the network must be a HybridBlock, not {type(net).__name__}")
    graph_breaks.refuse_in_trace("layouts")
    if plan is not None and not isinstance(plan, dict):
        raise TypeError(
            f"layouts: plan must be a dict such as {{'.*up.weight': 'model'}}, not {plan!r}"
        )
    if loss is not None and not callable(loss):
        raise TypeError(f"layouts: loss must be a function of outputs and labels, not {loss!r}")
    if loss is None and not (isinstance(labels, (list, tuple)) and not labels):
        raise ValueError("layouts: labels are arguments of the loss; pass loss= as well")
    refuse_partitioned(net, "layouts", _PLAIN)
    for param in net.collect_params().values():
        if isinstance(param, HomeParameter):
            raise MXNetError(
                f"layouts: '{param.name}' belongs to a layer that is split over devices; {_PLAIN}"
            )
    study = Study(
        net,
        _listed(sample),
        loss,
        _listed(labels),
        *_places(memory, devices),
        _state_factor(optimizer, optimizer_params),
        train,
    )
    return study.compare(plan, progress)


def _listed(given):
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _places(memory, devices):
    """Returns the devices and their bytes."""
    if isinstance(memory, dict):
        if devices is not None and set(memory) != set(devices):
            raise ValueError("layouts: memory must have an entry for each of the devices")
        devices = list(memory) if devices is None else devices
        memory = [memory[ctx] for ctx in devices]
    if memory is None and devices is None:
        raise ValueError("layouts: pass memory=['24GB', ...], devices=, or both")
    if memory is not None and (not isinstance(memory, (list, tuple)) or not memory):
        raise ValueError(
            "layouts: memory must be a list with an entry for each device, such as ['24GB', "
            f"'12GB'], or a dict of Context to bytes, not {memory!r}"
        )
    if devices is None:
        devices = [cpu(i) for i in range(len(memory))]
    devices = [devices] if isinstance(devices, Context) else list(devices)
    known = all(isinstance(ctx, Context) and ctx.rank is None for ctx in devices)
    if not devices or not known or len(set(devices)) != len(devices):
        raise ValueError(
            "layouts: devices must be a list of different Contexts of this process, not "
            f"{devices!r}"
        )
    if len(devices) > _MOST_DEVICES:
        raise ValueError(
            f"layouts: at most {_MOST_DEVICES} devices are compared, not {len(devices)}; divide "
            "the batch over groups of devices (data parallelism), and pass the devices of one group"
        )
    if memory is None:
        memory = _memory_of(devices)
    if len(memory) != len(devices):
        raise ValueError(
            f"layouts: memory must have an entry for each of the {len(devices)} devices, not "
            f"{memory!r}"
        )
    return devices, [int(domain.byte_count("layouts", "memory", value)) for value in memory]


def _memory_of(devices):
    limits = limits_of(devices)
    for ctx in devices:
        if ctx not in limits and ctx.device_type == "gpu":
            limits[ctx] = gpu_memory_info(ctx.device_id)[1]
        if ctx not in limits:
            raise ValueError(
                f"layouts: {ctx} has no memory limit; pass memory=, or call "
                "mx.context.set_memory_limit"
            )
    return [limits[ctx] for ctx in devices]


def _state_factor(optimizer, options):
    """Returns a function from dtypes to the bytes of states per byte of weights."""
    if not isinstance(optimizer, opt.Optimizer):
        optimizer = opt.create(optimizer, **(options or {}))
    found: dict[Any, float] = {}

    def factor(dtype):
        if dtype not in found:
            weight = nd.zeros((64, 64), dtype=dtype)
            with warnings.catch_warnings():  # of types, which the training will show
                warnings.simplefilter("ignore")
                states = copy.copy(optimizer).create_state_multi_precision(0, weight)
            size = sum(math.prod(a.shape) * itemsize(a.dtype) for a in arrays_of(states))
            found[dtype] = size / (64 * 64 * itemsize(dtype))
        return found[dtype]

    return factor

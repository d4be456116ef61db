"""Moves, saves and loads the contents of a parameter's gradients.

A gradient is part of the training state from the backward pass that writes it until the update that
uses it. With ``grad_req='add'``, it is always part of it, because it accumulates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._core import dtype_name
from ..._internal import ranks
from ..._internal.ranks.own_arrays import brought_to_all
from ...base import MXNetError
from ...ndarray.sparse import RowSparseNDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..._internal.types import NDArray
    from ...context import Context
    from ._parameter import Parameter

    # (gradient, or None for zero; True if the next update must use the gradient)
    Content = tuple[NDArray | None, bool]


class Gradients(Mapping["Context", "NDArray"]):
    """The gradients of dense variables by device. Reading one allocates its memory."""

    def __init__(self, variables: Mapping[Context, NDArray]) -> None:
        self._variables = variables
        self._found: dict[Context, NDArray] = {}

    def __getitem__(self, ctx: Context) -> NDArray:
        found = self._found.get(ctx)
        if found is None:
            found = self._found.setdefault(ctx, self._variables[ctx].grad)
        return found

    def __iter__(self) -> Iterator[Context]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def written(param: Parameter) -> list[NDArray]:
    """Returns the gradients that have been written to. All others are zero."""
    gradients = param.gradients or {}
    return [gradients[ctx] for ctx in gradients if _is_written(gradients, ctx)]


def _is_written(gradients, ctx):
    """True unless a gradient is known to be zero. All ranks get the same answer, even if only some
    have read the gradient and so allocated it."""
    if not isinstance(gradients, Gradients):
        return True
    there = ctx in gradients._found or gradients._variables[ctx]._has_gradient
    return there and not gradients[ctx]._is_zero


def contents_of(param: Parameter) -> list[Content]:
    """Returns (gradient, True if backward has written it since the last step) for each replica.
    Dense gradients are the arrays themselves, or None if they have not been written to. row_sparse
    gradients are copies."""
    if not param.gradients:
        return []
    found: list[Content] = []
    for ctx, weight in param.arrays.items():
        if param.grad_stype != "default":
            content = param.gradients[ctx].copy()
        else:
            there = _is_written(param.gradients, ctx)
            content = param.gradients[ctx].detach() if there else None
        found.append((content, bool(weight._fresh_grad)))
    return found


def on_devices(
    contents: Sequence[Content], old: Sequence[Context], new: Sequence[Context]
) -> dict[Context, Content]:
    """Redistributes the gradients of replicas on devices `old` to replicas on devices `new`.

    If the number of replicas is unchanged, each replica keeps its own gradient. Otherwise, the
    first new replica gets the sum and the rest get zero. The next update sums over the replicas,
    so its result is the same.
    """
    if not contents:
        return {}
    if set(old) == set(new):
        return dict(zip(old, contents))
    if len(old) == len(new):
        return dict(zip(new, contents))
    return {ctx: (content, fresh) for ctx, (content, fresh) in zip(new, summed(contents, len(new)))}


def summed(contents: Sequence[Content], count: int) -> list[Content]:
    """Sums the replicas' gradients. Returns the contents for `count` replicas: the sum for the
    first one, zero for the rest."""
    arrays = [array for array, _ in contents if array is not None]
    total = arrays[0] if arrays else None
    if len(arrays) > 1:
        total = nd.add_n(*[array.as_in_context(arrays[0].context) for array in arrays])
    fresh = all(fresh for _, fresh in contents)
    return [(total if i == 0 else None, fresh) for i in range(count)]


def filled(grad: Any, ctx: Context, content: NDArray | None, dtype: Any) -> Any:
    """Returns a gradient on device `ctx` with the given contents. If `grad` is a row_sparse
    gradient, fills and returns it. If `grad` is None, creates a dense gradient."""
    if grad is None:
        same = dtype_name(content.dtype) == dtype_name(dtype)
        return content.copyto(ctx) if same else content.as_in_context(ctx).astype(dtype)
    if content is None:
        return grad
    content = content.as_in_context(ctx)  # a collective call: every rank must join it
    if content.indices.size:
        with ranks.alone():
            grad[:] = content.astype(dtype)
    return grad


def left_behind(param: Parameter) -> tuple[list[NDArray], list[Any]]:
    """Returns the parameter's arrays that are on the autograd tape, so a backward pass may still
    write their gradients after they are replaced. Also returns the changes (`_core.at_once`) that
    mark these gradients as used, so that a later write is detected."""
    arrays = [array for array in param.arrays.values() if array._on_tape]
    marks = [
        (setattr, array, "_fresh_grad", False)
        if param.grad_stype == "default"
        else array.gradient.replacement(None, False)
        for array in arrays
    ]
    return [*[array for array in param.left if array._on_tape], *arrays], marks


# Files


def to_save(params: Iterable[Parameter], adding: bool, phase: int) -> list[Parameter]:
    """Returns the parameters whose gradients a later backward pass or step uses. Only these need
    to be saved.

    `adding` is True if a Trainer accumulates gradients over several calls of `step`. Then `phase`
    is the number of calls since the last update. If it is 0, the accumulated gradients are zero.
    """
    chosen, unsure = [], []
    for param in params:
        if not param.gradients:
            continue
        if any(weight._fresh_grad for weight in param.arrays.values()):
            chosen.append(param)
        elif param.grad_req == "add":
            (unsure if not adding else chosen if phase else []).append(param)
    flags = [
        (
            param,
            brought_to_all((array != 0).sum())
            if array.stype == "default"
            else array.with_rows_of_owner().indices.size,
        )
        for param in unsure
        for array, _ in contents_of(param)
        if array is not None
    ]
    held = {
        param
        for param, flag in flags
        if (flag.item() if isinstance(flag, nd.NDArray) else flag) != 0
    }
    return [*chosen, *[param for param in unsure if param in held]]


def describe(param: Parameter, name: str, arrays: dict[str, NDArray]) -> dict[str, Any]:
    """Returns a description of a parameter's gradients for a JSON header, and adds their arrays to
    `arrays`."""
    replicas = []
    for k, (array, fresh) in enumerate(contents_of(param)):
        key, kind = f"gradient:{k}:{name}", "array"
        if array is not None and array.stype != "default":
            array = array.with_rows_of_owner()
        if array is None:
            kind = "zero"
        elif array.stype == "default":
            arrays[key] = array
        elif array.indices.size:
            kind = "rows"
            arrays[f"{key}:values"], arrays[f"{key}:rows"] = array.data, array.indices
        else:
            kind = "zero"
        replicas.append({"kind": kind, "fresh": fresh})
    return {"grad_req": param.grad_req, "replicas": replicas}


def keys_of(entry: Mapping[str, Any], name: str) -> list[tuple[str, bool]]:
    """Returns (name, True if it has the parameter's shape) for each array of a description."""
    keys = []
    for k, replica in enumerate(entry["replicas"]):
        key = f"gradient:{k}:{name}"
        if replica["kind"] == "array":
            keys.append((key, True))
        elif replica["kind"] == "rows":
            keys += [(f"{key}:values", False), (f"{key}:rows", False)]
    return keys


def is_description(entry: Any) -> bool:
    """True if an object from a file is a valid description of gradients."""
    return (
        isinstance(entry, dict)
        and entry.get("grad_req") in ("write", "add")
        and isinstance(entry.get("replicas"), list)
        and bool(entry["replicas"])
        and all(
            isinstance(replica, dict)
            and replica.get("kind") in ("array", "rows", "zero")
            and isinstance(replica.get("fresh"), bool)
            for replica in entry["replicas"]
        )
    )


def read(
    param: Parameter, entry: Mapping[str, Any], name: str, array_of: Callable[[str], NDArray]
) -> list[Content]:
    """Reads the gradients of a description; `array_of` returns an array of the file by its name.
    Raises MXNetError if a shape does not match the parameter's."""
    contents: list[Content] = []
    for k, replica in enumerate(entry["replicas"]):
        key, content = f"gradient:{k}:{name}", None
        if replica["kind"] == "array":
            content = array_of(key)
            fits = content.shape == param.shape
        elif replica["kind"] == "rows":
            values, rows = array_of(f"{key}:values"), array_of(f"{key}:rows")
            numbers = brought_to_all(rows).asnumpy()
            fits = (
                rows.shape == values.shape[:1]
                and values.shape[1:] == param.shape[1:]
                and bool((numbers[1:] > numbers[:-1]).all())
                and 0 <= numbers.min()
                and numbers.max() < param.shape[0]
            )
            if fits:
                content = RowSparseNDArray(values, rows.astype("int64"), param.shape)
        else:
            fits = True
        if not fits:
            raise MXNetError(
                f"the gradient of parameter '{param.name}' does not have the parameter's shape "
                f"{param.shape}"
            )
        contents.append((content, replica["fresh"]))
    return contents


def check(param: Parameter, entry: Mapping[str, Any], source: str) -> None:
    """Raises MXNetError if a parameter cannot use the gradients of a description because its
    `grad_req` differs."""
    if (
        param.grad_req == entry["grad_req"]
        or param.grad_req == "null" != entry["grad_req"] != "add"
    ):
        return
    raise MXNetError(
        f"{source} holds a gradient of parameter '{param.name}' with grad_req "
        f"'{entry['grad_req']}', which no update has used yet, but the parameter's grad_req is "
        f"'{param.grad_req}'; set it to '{entry['grad_req']}' first (Trainer(accumulate=...) "
        "sets 'add')"
    )


def changes_to(param: Parameter, contents: Sequence[Content] | None) -> list[Any]:
    """Returns the changes (`_core.at_once`) that replace a parameter's gradients by `contents`.
    If `contents` is None, the gradients become zero and are marked as used."""
    if not param.gradients:
        return []
    count = len(param.gradients)
    if contents is None:
        contents = [(None, False)] * count
    elif len(contents) != count:
        contents = summed(contents, count)
    changes: list[Any] = []
    for (ctx, weight), (content, fresh) in zip(param.arrays.items(), contents):
        if content is None and not _is_written(param.gradients, ctx):
            changes.append((setattr, weight, "_fresh_grad", fresh))
            continue
        grad = param.gradients[ctx]
        there = None if content is None else content.as_in_context(grad.context)
        if grad.stype != "default":
            changes.append(grad.replacement(there, fresh))
            continue
        if there is not None:
            changes.append((there.copyto, grad))
        elif fresh or param.grad_req == "add":
            changes.append((grad.__setitem__, slice(None), 0))
        changes.append((setattr, weight, "_fresh_grad", fresh))
    return changes

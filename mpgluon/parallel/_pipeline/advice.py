"""Adds advice to error messages of pipelined blocks: the sizes involved, and the remedy."""

from ..._core import MICRO_BATCH_SPLIT as SPLIT
from ...base import counted

__all__ = ["divided_by_length", "of_size"]


def of_size(error, path, rows, works, pipeline, kinds):
    """Adds a remedy to `error`, which tracing a micro-batch of `rows` rows has raised. `works` is a
    number of rows for which tracing succeeded."""
    return type(error)(
        f"{error}\n  this is a micro-batch of {counted(rows, 'row')} along axis "
        f"{pipeline.axis}; {path} works with {works}. If the block contains the batch size as a "
        "number, replace it by -1 in a reshape (0 keeps a size of the input), or take it from "
        "an input's shape, because a pipeline divides the "
        f"batch{divided_by_length(pipeline, kinds, works)}"
    )


def divided_by_length(pipeline, kinds, total):
    """Returns a remedy if inputs are divided only because their length equals that of the first
    input. Returns an empty string otherwise."""
    divided = [i for i, kind in enumerate(kinds) if kind == SPLIT]
    if pipeline.split is not None or len(divided) < 2:
        return ""
    others = " and ".join(str(i) for i in divided[1:])
    word, are = ("input", "is") if len(divided) == 2 else ("inputs", "are")
    return (
        f"\n  {word} {others} {are} divided because of {total} elements along axis "
        f"{pipeline.axis}, as input {divided[0]} has; if one of the inputs is not part of the "
        "batch (a mask, a table), list only the inputs to divide: "
        f"Pipeline(split={divided[:1]}), with the indices of the labels for a TrainStep"
    )

"""Generates docs/operators.md from the registry and samples, and the tables of docs/onnx.md.

The samples determine the tested gradients. Run python -m support.operators_page in tests/.
"""

import os
import textwrap

from mpgluon import _core
from mpgluon.onnx._fold import FOLDS
from mpgluon.onnx._table import EXPORTS, IMPORTS
from samples.base import FIRST_ORDER_ONLY, all_samples

from .calls import mode
from .gpu_kernels import MISSING
from .paths import ROOT
from .sharding import OTHER_BITS, factors_of, infer_outputs, summed, text_of

PAGE = os.path.join(ROOT, "docs", "operators.md")
ONNX_PAGE = os.path.join(ROOT, "docs", "onnx.md")
GENERATED = "Generated from the conversion table (`mpgluon/onnx/_ops`).\n"
TEXT = """# Operators

Generated from the op registry and the tests' samples. `mx.nd.<name>.describe()` returns all
columns of an operator's row, its parameters and an example. (Python functions that wrap an
operator, such as `UpSampling` and those of `mx.nd.random`, have no `describe`.) Names that begin
with `_contrib_`, `_image_`, `_linalg_` and `_random_` belong to `mx.nd.contrib`, `mx.nd.image`,
`mx.nd.linalg` and `mx.nd.random`. `_adamw_update` and `_mp_adamw_update` are the operators of
`contrib.adamw_update` and `contrib.mp_adamw_update`.

Some functions of `mx.nd` and `mx.sym` are written in Python and have no row: `Custom`, and, in
`contrib`, `foreach`, `while_loop`, `cond`, `BatchNormWithReLU`, `rand_zipfian`,
`multi_adamw_update`, `multi_mp_adamw_update`, `multi_lamb_update` and `multi_mp_lamb_update`.

- **dtypes** are those of the first input, or of the output if the operator has no input. *floats*
  are float32, float64, float16 and bfloat16. *numbers* are floats, uint8, int8, int32 and int64.
  *all* are numbers and bool.
- **gradient**: *2* means gradients of any order, *1* only first-order gradients. If the cell is
  empty, the operator stops gradients, raises an error in the backward pass, or has no tested
  gradient.
- **pipelines**: *yes* if the operator works on micro-batches. Operators whose results have shapes
  that depend on values run on the host instead.
- **GPU**: *yes* if the operator has a GPU kernel, or is composed of operators that have one.
- **division**: how a tested call can be divided over devices. As in `einsum`, each group in
  parentheses is an array, and a letter is an index that can be cut into parts. A dot is an axis
  that can't be cut. `(3 i)` is an axis of 3 blocks, and each part has its share of each block.
  *sums k* means that results on parts of k are partial and are added. *max* and *min* are similar.
  If the cell is empty, the operator runs on whole arrays, or is composed of others.
- **bits**: *yes* if parts of a result have the same bits as in an undivided call, apart from
  partial sums. For other operators the order of sums depends on the shapes of the arrays. The
  gradient of an array that is not cut is always a sum over the parts.

| operator | other names | dtypes | gradient | pipelines | GPU | division | bits |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
SETS = {
    "floats": {"float32", "float64", "float16", "bfloat16"},
    "numbers": {"float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64"},
    "all": {
        *("float32", "float64", "float16", "bfloat16"),
        *("uint8", "int8", "int32", "int64", "bool"),
    },
}


def dtypes_of(row):
    return next(
        (name for name, dtypes in SETS.items() if dtypes == set(row["dtypes"])),
        ", ".join(row["dtypes"]),
    )


def division_of(name, samples):
    """Returns the cells of the first sample that has factors."""
    for sample in samples:
        arrays = sample.arrays(sample.dtypes[0] if sample.dtypes else "float32")
        if not all(a.size for a in arrays):
            continue
        with mode(sample):
            factors = factors_of(name, arrays, sample.params)
            outputs = infer_outputs(name, arrays, sample.params) if factors else ()
        if not factors:
            continue
        visible = len(outputs) - _core.get_op(name).describe()["outputs"].count("~")
        shapes = [a.shape for a in arrays] + [shape for shape, _ in outputs[:visible]]
        kinds = {}
        for letter, kind in summed(factors).items():
            kinds.setdefault({"sum": "sums"}.get(kind, kind), []).append(letter)
        words = [f", {kind} {' '.join(letters)}" for kind, letters in kinds.items()]
        text = text_of(factors, len(arrays), shapes).replace(",", ", ").replace("->", " -> ")
        return f"`{text.strip()}`{''.join(words)}", "" if name in OTHER_BITS else "yes"
    return "", ""


def page():
    """Returns the text of docs/operators.md."""
    rows = {row["name"]: row for row in (_core.get_op(op).describe() for op in _core.list_ops())}
    samples, lines = all_samples(), []
    for name, row in sorted(rows.items(), key=lambda item: item[0].lstrip("_").lower()):
        inner = name.startswith("_") and not name.startswith("_contrib_")
        if "hidden" in row["flags"] or ("gradient_only" in row["flags"] and inner):
            continue
        differentiated = row["differentiable"] and (
            "composed" not in row["flags"]  # some of its parts may have no gradient
            or any(sample.gradient_inputs() for sample in samples[name])
        )
        order = "1" if name in FIRST_ORDER_ONLY else "2"
        cells = [
            f"`{name}`",
            " ".join(f"`{alias}`" for alias in row["aliases"].split()),
            dtypes_of(row),
            order if differentiated else "",
            "yes" if row["batching"] else "",
            "" if name in MISSING else "yes",
            *("dynamic" in row["flags"] and ("", "") or division_of(name, samples[name])),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return TEXT + "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |") + "\n"


def onnx_page():
    """Returns the text of docs/onnx.md with new tables."""
    with open(ONNX_PAGE, encoding="utf-8") as file:
        text = file.read().split(GENERATED)[0] + GENERATED
    rows = [
        f"| `{name}` | {row.onnx} |"
        for name, row in sorted(EXPORTS.items(), key=lambda item: item[0].lstrip("_").lower())
    ]
    lines = ["", "| exported op | becomes |", "| --- | --- |", *rows, "", "Ops that are imported:"]
    read = ", ".join(f"`{name}`" for name in sorted({*IMPORTS, *FOLDS}))
    return text + "\n".join([*lines, *textwrap.wrap(f"{read}.", 100)]) + "\n"


if __name__ == "__main__":
    with open(PAGE, "w") as file:
        file.write(page())
    written = onnx_page()
    with open(ONNX_PAGE, "w", encoding="utf-8") as file:
        file.write(written)

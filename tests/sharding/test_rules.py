"""Sharding rules: every op on parts of its arrays, against the op on the whole arrays."""

from itertools import combinations

import numpy as np
import pytest

from mpgluon import _core, autograd
from samples.base import Sample, all_samples
from support.devices import on
from support.sharding import (
    OTHER_BITS,
    Run,
    combined,
    described,
    factors_of,
    infer_outputs,
    joined,
    localized,
    mode,
    part_of,
    summed,
    text_of,
    uneven,
)

SAMPLES = all_samples()
ON_CPU = on(0).device_type == "cpu"  # OTHER_BITS is about CPU kernels
# Composed ops have the factors of the ops that they emit, and dynamic ones and
# those whose arrays are on several devices have none.
OPS = [
    name
    for name in sorted(_core.list_ops())
    if not {"composed", "dynamic", "spans"} & set(_core.get_op(name).describe()["flags"])
]
# Outputs that only gradients read, whose parts are not parts of the whole: the padded mask.
READ_BY_GRADIENTS = {("_batch_norm_relu", 3)}


def dtypes_of(sample):
    """Returns the sample's first dtype and its first float dtype."""
    floats = [d for d in sample.dtypes if "float" in d]
    return list(dict.fromkeys([*sample.dtypes[:1], *floats[:1]])) or ["float32"]


def heads_of(outputs):
    """Returns a random gradient for each output, None for integers."""
    random = np.random.RandomState(7)
    return [
        random.uniform(-1, 1, o.shape).astype(o.dtype) if o.dtype.kind == "f" else None
        for o in outputs
    ]


def head_of_part(factor, index, head, digit, bounds, part, whole):
    """Returns the gradient of an output of part number `index`."""
    if head is None:
        return None
    if digit is not None:
        return part_of(head, factor[1], digit, *bounds[index])
    if factor[0] == "pass":  # the output is the same on all parts, and one of them is used
        return head if index == 0 else np.zeros_like(head)
    # Each of several equal maxima has the whole gradient.
    return head if factor[0] == "sum" else np.where(part == whole, head, 0).astype(head.dtype)


def look_up(factor, arrays, part, begin, end, output):
    """Changes indices into the whole to indices into a part. Returns an array that broadcasts to
    the output: True for each element that the part has."""
    size, digits, lookup = factor[1], factor[3], factor[6]
    local = np.clip(np.trunc(arrays[lookup]), 0, size - 1) - begin
    part[lookup] = np.clip(local, 0, end - begin - 1).astype(arrays[lookup].dtype)
    axis = next(d[0] for d in digits if d is not None)
    ones = (1,) * (len(output[0]) - axis - local.ndim)
    return ((local >= 0) & (local < end - begin)).reshape(local.shape + ones)


def close(found, wanted, sample, what):
    rtol, atol = sample.tolerance(wanted.dtype.name)
    finite = np.abs(wanted[np.isfinite(wanted)]) if wanted.dtype.kind == "f" else np.zeros(0)
    np.testing.assert_allclose(
        found.astype("float64"),
        wanted.astype("float64"),
        rtol=rtol,
        atol=atol + rtol * finite.max(initial=0),
        err_msg=what,
    )


def check_factor(name, sample, arrays, factor, count):
    """Compares the op on `count` parts with the op on the whole. Returns True if the bits of all
    outputs are equal."""
    kind, size, counts, digits, once, _, lookup = factor
    what = f"{name} {sample.params} {[a.shape for a in arrays]}: {factor}, {count} parts"
    wanted = [i for i in sample.gradient_inputs() if arrays[i].dtype.kind == "f"]
    bounds = uneven(size, count)
    parts = [[part_of(a, size, d, *b) for a, d in zip(arrays, digits)] for b in bounds]
    for part in parts[1:] if once >= 0 else ():
        part[once] = np.zeros_like(part[once])
    with mode(sample.train):
        outputs = infer_outputs(name, arrays, sample.params)
        given = [
            look_up(factor, arrays, part, *b, outputs[0]) if lookup >= 0 else np.True_
            for part, b in zip(parts, bounds)
        ]
        params = localized(name, arrays, sample.params, parts, outputs, factor, bounds)
    runs = [Run(name, p, q, sample.train, wanted) for p, q in zip(parts, params)]
    if counts:
        return True  # draws depend on the position of the part, which this test doesn't pass
    whole = Run(name, arrays, sample.params, sample.train, wanted)
    same = True
    for k, output in enumerate(whole.outputs):
        digit = digits[len(arrays) + k]
        if digit is None and (name, k) in READ_BY_GRADIENTS:
            continue
        found = [np.where(own, r.outputs[k], 0).astype(output.dtype) for own, r in zip(given, runs)]
        found = combined(factor, found, bounds, digit)
        close(found, output, sample, f"{what}: output {k}")
        same &= np.array_equal(found, output, equal_nan=output.dtype.kind == "f")
    for i, array in whole.written().items():
        found = combined(factor, [r.written()[i] for r in runs], bounds, digits[i])
        close(found, array, sample, f"{what}: written input {i}")
    if wanted:
        heads = heads_of(whole.outputs)
        gradients = [
            run.gradients(
                [
                    head_of_part(factor, p, *of)
                    for of in (
                        (
                            h if h is None or lookup < 0 else np.where(own, h, 0).astype(h.dtype),
                            digits[len(arrays) + k],
                            bounds,
                            run.outputs[k],
                            whole.outputs[k],
                        )
                        for k, h in enumerate(heads)
                    )
                ]
            )
            for p, (run, own) in enumerate(zip(runs, given))
        ]
        for i, gradient in whole.gradients(heads).items():
            shares = [g[i] for g in gradients][: 1 if i == once else None]
            found = joined(shares, bounds, digits[i]) if digits[i] else sum(shares)
            close(found, gradient, sample, f"{what}: gradient of input {i}")
    return same


@pytest.mark.parametrize("name", OPS)
def test_op_on_parts_equals_op_on_whole_arrays(name):
    for sample in SAMPLES.get(name, []):
        for dtype in dtypes_of(sample):
            arrays = sample.arrays(dtype)
            if not all(a.size for a in arrays):
                continue  # _core reads a size of 0 as unknown
            with mode(sample.train):
                factors = factors_of(name, arrays, sample.params)
            for factor in factors:
                for count in (2, 3)[: factor[1] - 1]:
                    same = check_factor(name, sample, arrays, factor, count)
                    keeps = factor[5] or (factor[0] == "pass" and name not in OTHER_BITS)
                    if keeps and ON_CPU:
                        assert same, f"{name} {sample.params}: {factor} changes bits"


@pytest.mark.parametrize("name", OPS)
def test_two_factors_can_be_cut_at_once(name):
    """The parameters of a call on parts along two factors give arrays of the parts' shapes."""
    for sample in SAMPLES.get(name, []):
        arrays = sample.arrays((dtypes_of(sample))[0])
        if not all(a.size for a in arrays):
            continue
        with mode(sample.train):
            outputs = infer_outputs(name, arrays, sample.params)
            whole = [described(a) for a in arrays]
            for pair in combinations(factors_of(name, arrays, sample.params), 2):
                parts = [list(shape) for shape, _ in [*whole, *outputs]]
                for _, size, _, digits, *_ in pair:
                    for shape, digit in zip(parts, digits):
                        if digit is not None:
                            shape[digit[0]] = shape[digit[0]] // size * (size - 1)
                parts = [
                    (tuple(shape), d[1]) for shape, d in zip(parts, [*whole, *outputs], strict=True)
                ]
                inputs, results = parts[: len(arrays)], parts[len(arrays) :]
                call = name, whole, sample.params or {}
                _core.op_localize(call, tuple(inputs), tuple(results))


# --- Factors of important ops ---------------------------------------------------------------------
# (op, shapes, parameters, factors). After a colon: the factors that give partial sums, or partial
# results of another kind.
ROWS = [
    ("FullyConnected", [(4, 6), (8, 6), (8,)], {"num_hidden": 8}, "(b,k),(n,k),(n)->(b,n): k"),
    (
        "FullyConnected",
        [(4, 6), (8, 6)],
        {"num_hidden": 8, "no_bias": True},
        "(b,k),(n,k)->(b,n): k",
    ),
    (
        "FullyConnected",
        [(4, 2, 3), (8, 6)],
        {"num_hidden": 8, "no_bias": True},
        "(b,j,k),(n,j k)->(b,n): j k",
    ),
    (
        "FullyConnected",
        [(4, 2, 6), (8, 6)],
        {"num_hidden": 8, "no_bias": True, "flatten": False},
        "(b,t,k),(n,k)->(b,t,n): k",
    ),
    ("dot", [(2, 3, 4), (4, 5)], {}, "(i,j,k),(k,n)->(i,j,n): k"),
    (
        "dot",
        [(4, 2, 3), (5, 4)],
        {"transpose_a": True, "transpose_b": True},
        "(k,i,j),(n,k)->(i,j,n): k",
    ),
    ("dot", [(4,), (4,)], {}, "(k),(k)->(1): k"),
    ("batch_dot", [(2, 3, 4), (2, 5, 4)], {"transpose_b": True}, "(b,m,k),(b,n,k)->(b,m,n): k"),
    ("batch_dot", [(2, 4, 3), (2, 4, 5)], {"transpose_a": True}, "(b,k,m),(b,k,n)->(b,m,n): k"),
    (
        "_linalg_gemm2",
        [(3, 2, 4), (4, 2, 5)],
        {"axis": 0},
        "(m,b,k),(k,b,n)->(m,b,n): k",
    ),
    ("_linalg_gemm", [(3, 4), (4, 5), (3, 5)], {}, "(m,k),(k,n),(m,n)->(m,n): k"),
    ("_linalg_syrk", [(2, 3, 4)], {}, "(b,.,k)->(b,.,.): k"),
    ("_linalg_trsm", [(2, 3, 3), (2, 3, 4)], {}, "(b,.,.),(b,.,n)->(b,.,n)"),
    ("_contrib_grouped_dot", [(9, 4), (2, 3, 4), (2,)], {}, "(.,k),(g,n,k),(.)->(.,n): g k"),
    ("Reshape", [(6, 4)], {"shape": (2, 3, 4)}, "(b t,c)->(b,t,c)"),
    ("Reshape", [(2, 3, 4)], {"shape": (-3, 0)}, "(b,t,c)->(b t,c)"),
    ("Reshape", [(5, 12)], {"shape": (0, -4, 3, 4)}, "(b,h d)->(b,h,d)"),
    ("Reshape", [(6, 4)], {"shape": (4, 6)}, "(i 3,2 j)->(i 2,3 j)"),
    ("_reshape_exact", [(2, 1, 6)], {"shape": (2, 2, 3)}, "(b,1,h d)->(b,h,d)"),
    ("_reshape_numpy", [(6,)], {"newshape": (-1, 2)}, "(i j)->(i,j)"),
    ("Flatten", [(2, 3, 4)], {}, "(b,c,w)->(b,c w)"),
    ("reshape_like", [(6, 4), (2, 3, 4)], {}, "(b t,c),(b,t,c)->(b,t,c)"),
    (
        "reshape_like",
        [(6, 4), (7, 2, 3)],
        {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 1, "rhs_end": 3},
        "(b t,c),(.,b,t)->(b,t,c)",
    ),
    ("expand_dims", [(2, 3)], {"axis": 1}, "(i,j)->(i,1,j)"),
    ("squeeze", [(2, 1, 3)], {}, "(i,1,j)->(i,j)"),
    ("transpose", [(2, 3, 4)], {"axes": (1, 0, 2)}, "(i,j,k)->(j,i,k)"),
    ("sum", [(2, 3, 4)], {"axis": 1}, "(i,j,k)->(i,k): j"),
    ("sum", [(2, 3)], {"axis": 0, "keepdims": True}, "(i,j)->(1,j): i"),
    ("nansum", [(2, 3)], {"axis": 0}, "(i,j)->(j): i"),
    ("max", [(2, 3)], {"axis": 0}, "(i,j)->(j): i=max"),
    ("min", [(2, 3)], {"axis": 0, "exclude": True}, "(i,j)->(i): j=min"),
    ("mean", [(2, 3)], {"axis": 0}, "(.,j)->(j)"),
    ("prod", [(2, 3)], {"axis": 0}, "(.,j)->(j)"),
    ("norm", [(2, 3)], {"axis": 0}, "(.,j)->(j)"),
    ("argmax", [(2, 3)], {"axis": 0}, "(.,j)->(j)"),
    ("slice", [(4, 6)], {"begin": (None, 2), "end": (None, 4)}, "(i,3 j)->(i,j)"),
    ("slice", [(4, 6)], {"begin": (0, 0), "end": (4, 6), "step": (2, 1)}, "(.,j)->(.,j)"),
    ("slice_axis", [(2, 12)], {"axis": -1, "begin": 4, "end": 8}, "(i,3 j)->(i,j)"),
    ("slice_axis", [(2, 12)], {"axis": 1, "begin": -8, "end": None}, "(i,3 j)->(i,2 j)"),
    ("slice_axis", [(2, 12)], {"axis": 1, "begin": 0, "end": 12}, "(i,j)->(i,j)"),
    ("SliceChannel", [(2, 12)], {"num_outputs": 3}, "(i,3 j)->(i,j),(i,j),(i,j)"),
    ("SliceChannel", [(2, 3)], {"num_outputs": 3, "squeeze_axis": True}, "(i,.)->(i),(i),(i)"),
    ("_split_v2", [(2, 12)], {"indices": (0, 4), "axis": 1}, "(i,3 j)->(i,j),(i,2 j)"),
    ("Concat", [(2, 4), (2, 8)], {"dim": 1}, "(i,j),(i,2 j)->(i,3 j)"),
    ("Concat", [(2, 3), (2, 4)], {"dim": 1}, "(i,.),(i,.)->(i,.)"),
    ("stack", [(2, 3), (2, 3)], {"axis": 1}, "(i,j),(i,j)->(i,.,j)"),
    ("broadcast_to", [(2, 1)], {"shape": (0, 3)}, "(i,1)->(i,j)"),
    ("broadcast_axis", [(2, 1)], {"axis": 1, "size": 3}, "(i,1)->(i,j)"),
    ("broadcast_like", [(2, 1), (2, 3)], {}, "(i,1),(i,j)->(i,j)"),
    ("broadcast_add", [(2, 3), (1, 3)], {}, "(i,j),(1,j)->(i,j)"),
    ("tile", [(2, 3)], {"reps": (4, 1, 5)}, "(i,j)->(m,i,n j)"),
    ("repeat", [(2, 3)], {"repeats": 4, "axis": 1}, "(i,j)->(i,j 4)"),
    ("take", [(5, 3), (2, 4)], {}, "(n,k),(i,j)->(i,j,k): n"),
    ("Embedding", [(2, 4), (5, 3)], {"input_dim": 5, "output_dim": 3}, "(i,j),(n,k)->(i,j,k): n"),
    ("one_hot", [(2, 4)], {"depth": 3}, "(i,j)->(i,j,.)"),
    ("pick", [(2, 4, 3), (2, 4)], {}, "(i,j,.),(i,j)->(i,j)"),
    ("gather_nd", [(5, 3), (1, 4)], {}, "(.,j),(1,i)->(i,j)"),
    ("where", [(2, 3), (2, 3), (2, 3)], {}, "(i,j),(i,j),(i,j)->(i,j)"),
    (
        "Convolution",
        [(2, 3, 8, 8), (4, 3, 3, 3), (4,)],
        {"kernel": (3, 3), "num_filter": 4},
        "(b,c,.,.),(n,c,.,.),(n)->(b,n,.,.): c",
    ),
    (
        "Convolution",
        [(2, 3, 8, 8), (4, 3, 3, 3)],
        {"kernel": (3, 3), "num_filter": 4, "no_bias": True},
        "(b,c,.,.),(n,c,.,.)->(b,n,.,.): c",
    ),
    (
        "Convolution",
        [(2, 8, 8, 6), (4, 3, 3, 3)],
        {"kernel": (3, 3), "num_filter": 4, "num_group": 2, "no_bias": True, "layout": "NHWC"},
        "(b,.,.,g 3),(g 2,.,.,.)->(b,.,.,g 2)",
    ),
    (
        "Deconvolution",
        [(2, 3, 8, 8), (3, 4, 3, 3)],
        {"kernel": (3, 3), "num_filter": 4},
        "(b,c,.,.),(c,n,.,.)->(b,n,.,.): c",
    ),
    ("Pooling", [(2, 3, 8, 8)], {"kernel": (2, 2)}, "(b,c,.,.)->(b,c,.,.)"),
    ("im2col", [(2, 3, 8, 8)], {"kernel": (2, 2)}, "(b,c,.,.)->(b,c 4,.)"),
    (
        "BatchNorm",
        [(2, 3, 4), (3,), (3,), (3,), (3,)],
        {},
        "(b,c,w),(c),(c),(c),(c)->(b,c,w),(c),(c)",
    ),
    ("LayerNorm", [(2, 3, 4), (4,), (4,)], {}, "(i,j,.),(.),(.)->(i,j,.),(i,j,1),(i,j,1)"),
    ("_contrib_rms_norm", [(2, 3, 4), (4,)], {}, "(i,j,.),(.)->(i,j,.),(i,j,1)"),
    (
        "GroupNorm",
        [(2, 6, 4), (3,), (3,)],
        {"num_groups": 3},
        "(b,g 2,.),(g),(g)->(b,g 2,.),(b,g),(b,g)",
    ),
    ("softmax", [(2, 3, 4)], {"axis": 1}, "(i,.,k)->(i,.,k)"),
    ("log_softmax", [(2, 3, 4)], {}, "(i,j,.)->(i,j,.)"),
    ("_softmax_ce", [(2, 3, 4), (2, 3)], {}, "(i,j,.),(i,j)->(i,j),(i,j),(i,j)"),
    ("softmax_cross_entropy", [(3, 4), (3,)], {}, "(b,.),(b)->(1): b"),
    (
        "_contrib_linear_cross_entropy",
        [(2, 3, 4), (7, 4), (2, 3)],
        {},
        "(b,t,.),(.,.),(b,t)->(b,t),(b,t),(b,t)",
    ),
    ("_contrib_rotary", [(2, 5, 4, 8)], {}, "(b,t,h,.)->(b,t,h,.)"),
    (
        "_contrib_rotary",
        [(2, 4, 5, 8)],
        {"layout": "bhtd", "start": 3, "scaling": "linear", "factor": 2.0},
        "(b,h,t,.)->(b,h,t,.)",
    ),
    ("_arange", [], {"start": 3, "stop": 17, "step": 2}, "->(t)"),
    ("_arange", [], {"start": 7}, "->(t)"),
    ("_arange", [], {"start": 0, "stop": 1, "step": 0.1}, "->(.)"),
    ("_contrib_arange_like", [(2, 5, 3)], {"axis": 1}, "(b,t,c)->(t)"),
    ("_contrib_arange_like", [(5,)], {"start": -4, "step": 3}, "(t)->(t)"),
    ("_contrib_arange_like", [(5,)], {"step": 0.3}, "(.)->(.)"),
    ("_contrib_arange_like", [(2, 5)], {"axis": -1, "repeat": 2}, "(b,.)->(.)"),
    (
        "_contrib_rotary",
        [(2, 3, 4, 8), (2, 3)],
        {},
        "(b,t,h,.),(b,t)->(b,t,h,.)",
    ),
    (
        "_head_attention",
        [(2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)],
        {"keys": 7},
        "(b,t,h 2,.),(b,.,h,.),(b,.,h,d)->(b,t,h 2,d),(b,h 2,.,t)",
    ),
    (
        "_head_attention",
        [(2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (2, 1, 5, 7)],
        {"keys": 7, "layout": "bhtd", "causal": True, "use_mask": True},
        "(b,h,t,.),(b,h,.,.),(b,h,.,d),(b,1,t,.)->(b,h,t,d),(b,h,.,t)",
    ),
    (
        "_head_attention",
        [(2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6)],
        {"keys": 7, "causal": True, "window": 3},
        "(b,t,h 2,.),(b,.,h,.),(b,.,h,d)->(b,t,h 2,d),(b,h 2,.,t)",
    ),
    (
        "_head_attention",
        [(2, 7, 4, 8), (2, 5, 4, 8), (2, 5, 4, 6)],
        {"keys": 5, "window": 6},
        "(b,t,h,.),(b,.,h,.),(b,.,h,d)->(b,t,h,d),(b,h,.,t)",
    ),
    ("LeakyReLU", [(2, 3, 4), (3,)], {"act_type": "prelu"}, "(b,c,w),(c)->(b,c,w)"),
    ("SoftmaxOutput", [(2, 3), (2,)], {}, "(b,.),(b)->(b,.)"),
    ("where", [(2,), (2, 3), (2, 3)], {}, "(i),(i,j),(i,j)->(i,j)"),
    ("_zeros", [], {"shape": (2, 3)}, "->(i,j)"),
    ("_random_normal", [], {"shape": (2, 3)}, "->(i,j)"),
    ("_contrib_dispatch", [(4, 6), (8,)], {}, "(.,n),(.)->(.,n)"),
]


def canonical(text, kinds):
    """Renames the letters of a string of factors in the order of appearance."""
    names = {}
    for letter in filter(str.isalpha, text):
        names.setdefault(letter, f"f{len(names)}")
    renamed = "".join(names.get(c, c) for c in text)
    return renamed, {names[letter]: kind for letter, kind in kinds.items()}


def test_unknown_shapes_have_no_factors():
    assert _core.op_sharding("Reshape", [(None, "float32")], {"shape": (2, -1)}) == []
    assert (
        _core.op_sharding("Convolution", [(None, None)] * 3, {"kernel": 3, "num_filter": 2}) == []
    )


# Inputs that hold indices
INDICES = {
    ("Embedding", 0),
    ("_contrib_dispatch", 1),
    ("_contrib_grouped_dot", 2),
    ("_contrib_linear_cross_entropy", 2),
    ("_contrib_rotary", 1),
    ("CTCLoss", 1),
    ("SoftmaxOutput", 1),
    ("_softmax_ce", 1),
    ("gather_nd", 1),
    ("one_hot", 0),
    ("pick", 1),
    ("softmax_cross_entropy", 1),
    ("take", 1),
}


def sample_of(name, shapes, params):
    """Returns a sample with random arrays of these shapes, and its arrays."""
    random = np.random.RandomState(0)
    written = {i for i, row in enumerate(_core.get_op(name).describe()["inputs"]) if row["mutable"]}
    indices = {i for i in range(len(shapes)) if (name, i) in INDICES}
    arrays = [
        random.randint(0, 3, shape).astype("int32" if name.startswith("_contrib") else "float32")
        if i in indices
        else random.uniform(0.2, 1, shape).astype("float32")
        for i, shape in enumerate(shapes)
    ]
    grad = [i for i in range(len(shapes)) if i not in written | indices]
    if name in ("argmax", "one_hot", "_contrib_arange_like"):  # no gradient
        grad = False
    if name == "_head_attention":  # the mask has no gradient
        grad = grad[:3]
    return Sample(arrays, params, grad=grad, rtol=1e-4, atol=1e-5), arrays


@pytest.mark.parametrize("row", ROWS, ids=[f"{r[0]} {r[3]}" for r in ROWS])
def test_factors_of_op(row):
    name, shapes, params, expected = row
    expected, _, partial = expected.partition(": ")
    words = [word.partition("=") for word in partial.split()]
    sample, arrays = sample_of(name, shapes, params)
    factors = factors_of(name, arrays, params)
    outputs = [shape for shape, _ in infer_outputs(name, arrays, params)]
    found = text_of(factors, len(arrays), [*shapes, *outputs])
    kinds = {letter: kind or "sum" for letter, _, kind in words}
    assert canonical(found, summed(factors)) == canonical(expected, kinds), found
    assert all(f[2] == name.startswith("_random") for f in factors)
    for factor in factors:
        for count in (2, 3)[: factor[1] - 1]:
            check_factor(name, sample, arrays, factor, count)


def test_batch_norm_in_train_mode_has_only_channels():
    arrays = [np.zeros(s, "float32") for s in [(2, 3, 4), (3,), (3,), (3,), (3,)]]
    with autograd.train_mode():
        (factor,) = factors_of("BatchNorm", arrays, {})
        again = factors_of("BatchNorm", arrays, {"use_global_stats": True})
    assert factor[1] == 3
    assert sorted(f[1] for f in again) == [2, 3, 4]


# Larger calls, for which kernels have other loops.
LARGE = [
    ("Deconvolution", [(4, 32, 16, 16), (32, 24, 3, 3)], {"kernel": (3, 3), "num_filter": 24}),
    ("_contrib_grouped_dot", [(90, 64), (4, 70, 64), (4,)], {}),
    ("softmax", [(33, 40, 50)], {"axis": 1}),
    ("log_softmax", [(33, 40, 50)], {}),
    ("LayerNorm", [(33, 40, 50), (50,), (50,)], {}),
    ("_contrib_rms_norm", [(33, 40, 50), (50,)], {}),
    ("GroupNorm", [(33, 40, 50), (4,), (4,)], {"num_groups": 4}),
    ("InstanceNorm", [(33, 40, 50), (40,), (40,)], {}),
    ("Pooling", [(5, 30, 20, 20)], {"kernel": (3, 3), "pool_type": "avg"}),
    ("_head_attention", [(5, 40, 8, 32), (5, 50, 4, 32), (5, 50, 4, 32)], {"keys": 50}),
    *(
        (
            "_head_attention",
            [(2, 300, 4, 32), (2, 320, 2, 32), (2, 320, 2, 32)],
            {"keys": 320, **options},
        )
        for options in ({}, {"causal": True}, {"window": 130}, {"causal": True, "window": 130})
    ),
    ("_contrib_linear_cross_entropy", [(50, 40), (70, 40), (50,)], {}),
    ("_softmax_ce", [(50, 40), (50,)], {}),
    ("_linalg_trsm", [(3, 40, 40), (3, 40, 50)], {}),
    ("_linalg_trmm", [(3, 40, 40), (3, 40, 50)], {}),
    ("_np_cumsum", [(30, 40, 50)], {"axis": 1}),
    ("CTCLoss", [(20, 30, 10), (30, 4)], {}),
    ("_contrib_rotary", [(3, 40, 8, 32)], {}),
    ("tanh", [(33, 57)], {}),
]


@pytest.mark.parametrize("name, shapes, params", LARGE)
def test_larger_parts_keep_bits(name, shapes, params):
    sample, arrays = sample_of(name, shapes, params)
    factors = factors_of(name, arrays, params)
    assert factors
    for factor in factors:
        for count in (2, 3)[: factor[1] - 1]:
            same = check_factor(name, sample, arrays, factor, count)
            keeps = factor[5] or (factor[0] == "pass" and name not in OTHER_BITS)
            assert same or not keeps or not ON_CPU, factor

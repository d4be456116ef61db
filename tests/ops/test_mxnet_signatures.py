"""Every operator of MXNet 1.9.1 exists under nd and sym with its parameters and defaults."""

import inspect
import os

import pytest

import mpgluon as mx
from mpgluon._internal.hints import CONTRIB

TABLE = os.path.join(os.path.dirname(__file__), "..", "data", "mxnet-1.9.1", "operators.tsv")
# Equivalent defaults: MXNet's spelling and ours.
SAME = {("", None), ("None", False), ("None", True)}  # devices; cudnn_off; count_include_pad
# Parameters without effect in MXNet or here, accepted by **kwargs.
WITHOUT_EFFECT = {
    "multi_adamw_update": ("name",),
    "multi_mp_adamw_update": ("name",),
    "multi_lamb_update": ("name",),
    "multi_mp_lamb_update": ("name",),
}
ONLY_ND = {"getnnz", "group_adagrad_update", "calibrate_entropy"}

# Ops whose parameter order differs. Arrays come first here, as in MXNet's own wrappers (the table
# has the order of generated code). States of two old ops are arguments. AdamW's wrapper has eta
# early.
ARRAYS_FIRST = ("random_pdf_", "sample_")
OTHER_ORDER = {
    "BatchNorm_v1",
    "IdentityAttachKLSparseReg",
    # im2col_step comes before layout, as in ModulatedDeformableConvolution
    "DeformableConvolution",
    "adamw_update",
    "mp_adamw_update",
    "quantized_elemwise_add",  # the table lists the ranges of results before the arrays
}


def rows():
    with open(TABLE) as file:
        for line in file.read().splitlines()[1:]:
            space, name, parameters = line.split("\t")
            yield pytest.param(space, name, parameters.split(), id=f"{space}.{name}")


def plain(value):
    """Returns a default as a number, or as text without spaces and bracket types."""
    text = str(value).replace(" ", "").replace("True", "1").replace("False", "0").strip("'")
    try:
        return float(text)
    except ValueError:
        pass
    if text[:1] in "([":
        return [float(number) for number in text.strip("()[]").split(",") if number]
    return text


def same(mxnets, ours):
    if (mxnets, ours) in SAME:
        return True
    a, b = plain(mxnets), plain(ours)
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-6)
    return a == b


def test_operator_table_is_complete():
    assert len(list(rows())) == 402


@pytest.mark.parametrize("space, name, parameters", rows())
def test_op_parameters_and_defaults_match_mxnet(space, name, parameters):
    packages = [mx.nd] if space.startswith("nd.") else [mx.nd, mx.sym]
    space = space.removeprefix("nd.")
    for package in packages:
        if name in CONTRIB and (package is mx.sym or name not in ONLY_ND):
            continue  # tests/robustness/test_unknown_names.py covers their errors
        module = package if space == "op" else getattr(package, space)
        ours = inspect.signature(getattr(module, name)).parameters
        kinds = {parameter.kind for parameter in ours.values()}
        for item in parameters:
            key, _, default = item.partition("=")
            if key == "*":
                assert kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
            elif key not in WITHOUT_EFFECT.get(name, ()):
                assert key in ours, (package.__name__, key)
                if "=" in item:
                    assert same(default, ours[key].default), (package.__name__, item)


@pytest.mark.parametrize("space, name, parameters", rows())
def test_op_parameter_order_matches_mxnet(space, name, parameters):
    keys = [item.partition("=")[0] for item in parameters]
    differs = name in OTHER_ORDER or name.startswith(ARRAYS_FIRST) or name.endswith("_like")
    packages = [mx.nd] if space.startswith("nd.") else [mx.nd, mx.sym]
    space = space.removeprefix("nd.")
    for package in packages:
        if "*" in keys or differs or name in CONTRIB or name in ONLY_ND:
            continue
        module = package if space == "op" else getattr(package, space)
        ours = [
            key
            for key, parameter in inspect.signature(getattr(module, name)).parameters.items()
            if parameter.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        assert ours[: len(keys)] == keys, package.__name__

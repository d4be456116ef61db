"""The names of MXNet 1.9.1's Python API, their parameters and defaults."""

import importlib
import inspect
import os
import re

import pytest

import mpgluon as mx
from support.paths import ROOT

TABLE = os.path.join(ROOT, "tests", "data", "mxnet-1.9.1", "api.tsv")
SOMETHING = object()  # a default that is an MXNet object
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Intended differences: defaults that are numbers or None in place of MXNet's equivalent tuple or
# folder, and functions with other parameter names, which users pass by position or not at all.
SAME_MEANING = {"pool_size", "strides", "padding", "output_padding", "dilation", "layout", "root"}
SAME_MEANING |= {"embedding_root", "node_attrs", "positions", "h2h_kernel", "h2h_dilate"}
SAME_MEANING |= {"i2h_kernel", "i2h_stride", "i2h_pad", "i2h_dilate"}
OTHER_NAMES = """
    nd.NDArray.broadcast_like nd.NDArray.broadcast_to nd.NDArray.diag sym.Symbol.as_in_context
    gluon.block.HybridBlock.hybridize gluon.nn.GroupNorm.hybrid_forward
    gluon.nn.LayerNorm.hybrid_forward gluon.rnn.GRUCell.hybrid_forward
    gluon.rnn.LSTMCell.hybrid_forward gluon.rnn.RNNCell.hybrid_forward
    gluon.rnn.ModifierCell.begin_state gluon.rnn.ModifierCell.hybrid_forward
    gluon.rnn.RecurrentCell.forward gluon.contrib.nn.SyncBatchNorm kvstore.KVStore
    executor.Executor contrib.text.embedding.register rnn.ModifierCell.begin_state
""".split()
# Starts of names that are left out
LEFT_OUT = ("operator.NDArrayOp", "operator.NumpyOp", "operator.PythonOp")
LEFT_OUT += tuple(
    f"test_utils.{name}"
    for name in """
    checkShapes check_speed chi_square_check collapse_sum_like
    create_2d_tensor create_vector get_atol get_etol get_identity_mat get_im2rec_path
    get_mnist_pkl get_rtol has_tvm_ops is_cd_run is_op_runnable locationError mean_check
    new_matrix_with_real_eigvals new_orthonormal_matrix_2d new_sym_matrix_with_real_eigvals
    numeric_grad rand_coord_2d shuffle_csr_column_indices simple_forward var_check
    """.split()
)


def rows():
    with open(TABLE, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return [(f"{module}.{name}", *rest, "")[:2] for module, name, *rest in lines[1:]]


def found(path):
    value = mx
    for part in path.split("."):
        if inspect.isclass(value):
            value = inspect.getattr_static(value, part)
        elif inspect.ismodule(value) and not hasattr(value, part):
            value = importlib.import_module(f"{value.__name__}.{part}")
        else:
            value = getattr(value, part)
    return getattr(value, "__func__", value)


def parameters_of(text):
    """Returns the parameters of a signature in the format of the table."""
    text = re.sub(
        r"functools\.partial\(<[^>]*>[^)]*\)|(?<!')<[^<>]*(?:<[^<>]*>)?[^<>]*>", "_", text
    )
    text = re.sub(r"=(?:logging|inf|dtype\([^)]*\)|[cg]pu\(\d\))", "=_", text)
    scope = {"_": SOMETHING}
    exec(f"def function{text}: pass", scope)
    return list(inspect.signature(scope["function"]).parameters.values())


def without_self(parameters):
    return parameters[parameters[0].name in ("self", "cls") :] if parameters else parameters


def difference(path, text):
    value = found(path)
    if text == "property":
        fits = hasattr(type(value), "__get__") and not callable(value)
        return None if fits or isinstance(value, tuple) else f"is {value!r}"
    text = text.removeprefix("class ").strip()
    if not text.startswith("(") or ".__" in path:
        return None
    theirs = without_self(parameters_of(text))
    if any(p.kind in VARIADIC[:1] for p in theirs):
        return None  # the table does not list them
    theirs = [p for p in theirs if p.kind not in VARIADIC]
    try:
        mine = without_self(list(inspect.signature(value).parameters.values()))
    except ValueError:
        return None if not theirs else "has no signature"
    names = [p.name for p in mine]
    if names[: len(theirs)] != [p.name for p in theirs]:
        return f"has the parameters {names}, not {[p.name for p in theirs]}"
    extra = [p.name for p in mine[len(theirs) :] if p.default is p.empty and p.kind not in VARIADIC]
    if extra:
        return f"needs {extra}"
    for p, own in zip(theirs, mine):
        if p.default in (SOMETHING, p.empty) or p.name in SAME_MEANING:
            continue
        if own.default is p.empty or repr(own.default) != repr(p.default):
            return f"{p.name} is {own.default!r}, not {p.default!r}"
    return None


def test_api_names_and_signatures_match_mxnet():
    table = rows()
    assert len(table) == 1554
    wrong = []
    for path, text in table:
        try:
            told = difference(path, text)
        except (AttributeError, ImportError) as error:
            told = f"is missing: {error}"
            if path.startswith(LEFT_OUT):
                continue
        if path.startswith(LEFT_OUT) or (told is not None) != (path in OTHER_NAMES):
            wrong.append(f"{path} {told or 'is as in MXNet now'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "path, text, told",
    [
        ("gluon.nn.Dense", "class (units, activation=None)", None),
        ("gluon.nn.Dense", "class (units, activation='relu')", "activation is None, not 'relu'"),
        ("gluon.nn.Dense", "class (width)", "not ['width']"),
        ("init.Xavier", "class (rnd_type=<object>)", None),
        ("gluon.Trainer.step", "(self)", "needs ['batch_size']"),
        ("gluon.Trainer.step", "property", "is <function"),
    ],
)
def test_difference_detects_changed_signatures(path, text, told):
    assert told in (difference(path, text) or "") if told else difference(path, text) is None
    with pytest.raises(AttributeError):
        difference("gluon.Trainer.stop", "(self)")

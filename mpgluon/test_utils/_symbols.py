"""Checks of symbols and functions: their results and gradients."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING

import numpy as np

from .. import autograd, bfloat16, ndarray as nd, symbol
from .._internal import kinds
from ..symbol import Symbol
from ._arrays import rand_ndarray
from ._comparison import assert_almost_equal, default_numeric_eps, get_tolerance, get_tols
from ._environment import default_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._core import Context, NDArray
    from .._internal.types import DType
    from ..executor import Executor


__all__ = [
    "check_consistency",
    "check_numeric_gradient",
    "check_symbolic_backward",
    "check_symbolic_forward",
    "same_symbol_structure",
]


def same_symbol_structure(sym1: Symbol, sym2: Symbol) -> bool:
    """True if two symbols have the same ops in the same order."""
    ops, others = (
        [node["op"] for node in json.loads(sym.tojson())["nodes"]] for sym in (sym1, sym2)
    )
    return ops == others


def _array(value, ctx, dtype):
    """Converts a value to an NDArray in `dtype`, or in its own dtype for "asnumpy"."""
    if isinstance(value, nd.NDArray):
        return value
    value = np.asarray(value)
    return nd.array(value, ctx=ctx, dtype=value.dtype if dtype == "asnumpy" else dtype)


def _by_name(what, values, names):
    """Returns a dict of values by name, from a dict or a sequence in the order of `names`."""
    if not isinstance(values, dict):
        return dict(zip(names, values))
    if set(values) != set(names):
        raise ValueError(f"{what} has {sorted(values)}, but the symbol has {sorted(names)}")
    return dict(values)


def _arguments(sym, location, aux_states, ctx, dtype):
    """Returns dicts of arrays: the arguments, and the auxiliary states or None."""
    found = _by_name("location", location, sym.list_arguments())
    arguments = {name: _array(value, ctx, dtype) for name, value in found.items()}
    if aux_states is None:
        return arguments, None
    found = _by_name("aux_states", aux_states, sym.list_auxiliary_states())
    return arguments, {name: _array(value, ctx, dtype) for name, value in found.items()}


def _requests(grad_req, names):
    return (
        dict.fromkeys(names, grad_req)
        if isinstance(grad_req, str)
        else _by_name("grad_req", grad_req, names)
    )


def _compare_gradients(names, requests, computed, right, before, rtol, atol, equal_nan=False):
    """Compares gradients with the expected ones by name; `before` holds the arrays' old values."""
    for name in names:
        request = requests[name]
        if request not in ("write", "add", "null"):
            raise ValueError(f"grad_req of {name!r} is {request!r}; it must be write, add or null")
        found = computed[name].asnumpy()
        expected = right[name] if request != "null" else before[name]
        found = found - before[name] if request == "add" else found
        labels = (f"expected gradient of {name}", f"gradient of {name}")
        assert_almost_equal(expected, found, rtol, atol, labels, equal_nan=equal_nan)


def check_symbolic_forward(
    sym: Symbol,
    location: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    aux_states: Any = None,
    ctx: Context | None = None,
    equal_nan: bool = False,
    dtype: DType = np.float32,
) -> list[NDArray]:
    """Raises AssertionError unless a symbol has the expected outputs.

    Parameters
    ----------
    sym : Symbol
        The symbol or function to compute.
    location : list of arrays, or dict by name
        All arguments.
    expected : list of arrays, or dict by the name of the output
        The expected outputs.
    rtol, atol : float, optional
        See `assert_almost_equal`.
    aux_states : list of arrays, or dict by name, optional
        The auxiliary states; by default zeros.
    ctx : Context, default `default_context()`
        The device.
    equal_nan : bool, default False
        True if NaN equals NaN.
    dtype : default float32
        The dtype that NumPy arrays are converted to; "asnumpy" keeps their own.

    Returns
    -------
    list of NDArray, the outputs.
    """
    ctx = ctx or default_context()
    arguments, auxiliary = _arguments(sym, location, aux_states, ctx, dtype)
    outputs = sym.bind(ctx, args=arguments, aux_states=auxiliary).forward(is_train=False)
    expected = _by_name("expected", expected, sym.list_outputs())
    for name, output in zip(sym.list_outputs(), outputs):
        if name in expected:
            labels = (f"expected {name}", f"output {name}")
            assert_almost_equal(expected[name], output, rtol, atol, labels, equal_nan=equal_nan)
    return outputs


def check_symbolic_backward(
    sym: Symbol,
    location: Any,
    out_grads: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    aux_states: Any = None,
    grad_req: str | Sequence[str] | dict[str, str] = "write",
    ctx: Context | None = None,
    grad_stypes: dict[str, str] | None = None,
    equal_nan: bool = False,
    dtype: DType = np.float32,
) -> dict[str, NDArray]:
    """Raises AssertionError unless a symbol has the expected gradients of its arguments.

    Parameters
    ----------
    sym, location, rtol, atol, aux_states, ctx, equal_nan, dtype
        As in `check_symbolic_forward`.
    out_grads : list of arrays, dict by the name of the output, or None
        The gradients of the outputs.
    expected : list of arrays, or dict by the name of the argument
        The expected gradients; a dict may omit arguments.
    grad_req : str, list of str, or dict of str to str, default "write"
        "write", "add" or "null" for each argument. The gradient arrays initially hold random
        numbers.
    grad_stypes : dict of str to str, optional
        Storage types of gradients; they are only checked.

    Returns
    -------
    dict of str to NDArray, the gradients.
    """
    ctx = ctx or default_context()
    names = sym.list_arguments()
    arguments, auxiliary = _arguments(sym, location, aux_states, ctx, dtype)
    if not isinstance(expected, dict):
        expected = dict(zip(names, expected))
    for name, stype in (grad_stypes or {}).items():
        rand_ndarray(arguments[name].shape, stype or "default")  # checks the storage type
    requests = _requests(grad_req, names)
    gradients = {}
    for name in sorted(expected):
        noise = np.random.standard_normal(np.shape(expected[name]))
        kind = expected[name].dtype if dtype == "asnumpy" else dtype
        gradients[name] = nd.array(noise, ctx=ctx, dtype=kind)
    before = {name: array.asnumpy() for name, array in gradients.items()}
    executor = sym.bind(
        ctx, args=arguments, args_grad=gradients, aux_states=auxiliary, grad_req=requests
    )
    executor.forward(is_train=True)
    if isinstance(out_grads, dict):
        out_grads = [out_grads[name] for name in sym.list_outputs()]
    if out_grads is not None:
        out_grads = [_array(value, ctx, dtype) for value in out_grads]
    executor.backward(out_grads)
    _compare_gradients(expected, requests, gradients, expected, before, rtol, atol, equal_nan)
    return gradients


def _differences(value, array, eps):
    """Returns the gradient of ``value(array)``, summed, by central differences."""
    gradient = np.zeros(array.shape, np.float64)
    for place in np.ndindex(array.shape):
        kept = array[place]
        array[place] = kept + eps / 2
        above = value(array)
        array[place] = kept - eps / 2
        below = value(array)
        array[place] = kept
        gradient[place] = np.sum(above - below) / eps
    value(array)
    return gradient


def _numeric_gradients(executor, point, states, eps, train_mode, dtype):
    """Returns gradients of an executor's summed first output by central differences."""

    def output_of(name):
        def output(array):
            executor.arg_dict[name][:] = array
            for key, value in states.items():
                executor.aux_dict[key][:] = value
            return executor.forward(is_train=train_mode)[0].asnumpy()

        return output

    return {
        name: (
            _differences(output_of(name), array, eps)
            if array.dtype.kind == "f"
            else np.zeros(array.shape)
        ).astype(dtype)
        for name, array in point.items()
    }


def _numpy(value):
    return value.asnumpy() if isinstance(value, nd.NDArray) else np.asarray(value)


def check_numeric_gradient(
    sym: Any,
    location: Any,
    aux_states: Any = None,
    numeric_eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad_nodes: Any = None,
    use_forward_train: bool = True,
    ctx: Context | None = None,
    grad_stype_dict: dict[str, str] | None = None,
    dtype: DType = np.float32,
) -> None:
    """Raises AssertionError unless backward's gradients match central differences.

    The output is projected on random numbers, so that its elements cannot cancel.

    Parameters
    ----------
    sym : Symbol
        A symbol with one output, or a function of arrays, such as a Block, that returns an array
        or a list of them. In np mode, it gets arrays of ``mx.np``.
    location : list of arrays, or dict by name
        The point at which gradients are computed.
    aux_states : list of arrays, or dict by name, optional
        Auxiliary states of a symbol.
    numeric_eps : float, optional
        The distance between the two points of a difference; by default that of
        `default_numeric_eps` for the output's dtype.
    rtol, atol : float, optional
        See `assert_almost_equal`.
    grad_nodes : list of str, or dict of str to str, optional
        The arguments whose gradients are compared, with their ``grad_req``; all by default. For a
        function: their indices.
    use_forward_train : bool, default True
        True to compute the differences in training mode.
    ctx : Context, default `default_context()`
        The device.
    grad_stype_dict : dict of str to str, optional
        Storage types of gradients; they are only checked.
    dtype : default float32
        The dtype of the arrays.
    """
    ctx = ctx or default_context()
    for stype in (grad_stype_dict or {}).values():
        rand_ndarray((1,), stype)  # checks the storage type
    if not isinstance(sym, Symbol):
        _check_function(
            sym, location, numeric_eps, rtol, atol, grad_nodes, use_forward_train, ctx, dtype
        )
        return
    arguments, auxiliary = _arguments(sym, location, aux_states, ctx, dtype)
    names = list(sym.list_arguments() if grad_nodes is None else grad_nodes)
    requests = dict(grad_nodes) if isinstance(grad_nodes, dict) else dict.fromkeys(names, "write")
    (shape,) = sym.infer_shape(**{name: array.shape for name, array in arguments.items()})[1]
    states = {name: array.asnumpy() for name, array in (auxiliary or {}).items()}
    point = {name: array.asnumpy() for name, array in arguments.items()}
    projection = "__random_proj"
    arguments[projection] = nd.array(np.random.rand(*shape) + 0.1, ctx=ctx, dtype=dtype)
    before = {name: np.random.normal(0, 0.01, arguments[name].shape) for name in names}
    gradients = {name: nd.array(value, ctx=ctx, dtype=dtype) for name, value in before.items()}
    before = {name: array.asnumpy() for name, array in gradients.items()}
    output = symbol.make_loss(sym * symbol.Variable(projection))
    executor = output.bind(
        ctx,
        grad_req={**dict.fromkeys(arguments, "null"), **requests},
        args=arguments,
        args_grad=gradients,
        aux_states=auxiliary,
    )
    outputs = executor.forward(is_train=True)
    eps = get_tolerance(outputs[0], numeric_eps, default_numeric_eps())
    executor.backward()
    right = _numeric_gradients(executor, point, states, eps, use_forward_train, dtype)
    _compare_gradients(names, requests, gradients, right, before, rtol, atol)


def _check_function(function, location, eps, rtol, atol, chosen, train_mode, ctx, dtype):
    """Implements `check_numeric_gradient` for a function of arrays."""
    weights: list[Any] = []
    points = [_numpy(value).astype(np.float64) for value in location]

    def array_of(values):
        return kinds.of_mode(nd.array(values, ctx=ctx, dtype=dtype))

    def outputs_of(arrays):
        outputs = function(*arrays)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for output in outputs[len(weights) :]:
            weights.append(np.random.uniform(0.5, 1.5, output.shape))
        return outputs

    def value(*inputs):
        with autograd.pause(train_mode=train_mode):
            outputs = outputs_of([array_of(array) for array in inputs])
        return np.concatenate(
            [
                (output.asnumpy().astype(np.float64) * weight).ravel()
                for output, weight in zip(outputs, weights)
            ]
        )

    arrays = [array_of(array) for array in points]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        outputs = outputs_of(arrays)
    autograd.backward(
        outputs,
        [
            nd.array(weight, ctx=output.context, dtype=output.dtype)
            for output, weight in zip(outputs, weights)
        ],
    )
    step = get_tolerance(outputs[0], eps, default_numeric_eps())
    for i in range(len(arrays)) if chosen is None else chosen:
        names = (f"gradient of input {i}", "differences")
        right = _differences(
            lambda array: value(*points[:i], array, *points[i + 1 :]), points[i], step
        ).astype(arrays[i].asnumpy().dtype)
        assert_almost_equal(arrays[i].grad, right, rtol, atol, names)


def _executors(sym, ctx_list, grad_req, scale, arg_params, aux_params, use_uniform, rand_type):
    """Creates an executor for each entry of ctx_list, all with the same values."""
    symbols = [sym] * len(ctx_list) if isinstance(sym, Symbol) else list(sym)
    if len(ctx_list) < 2 or len(symbols) != len(ctx_list):
        raise ValueError("check_consistency: needs at least two contexts, and a symbol for each")
    names = symbols[0].list_arguments(), symbols[0].list_outputs()
    for other in symbols[1:]:
        if (other.list_arguments(), other.list_outputs()) != names:
            raise ValueError("check_consistency: the symbols' arguments or outputs differ")
    executors: list[Executor] = [
        one.simple_bind(grad_req=grad_req, **settings) for one, settings in zip(symbols, ctx_list)
    ]
    values = dict(arg_params or {})
    for name, array in sorted(executors[0].arg_dict.items()):
        if name not in values:
            values[name] = (
                np.random.uniform(-0.92 * scale, 0.92 * scale, array.shape)
                if use_uniform
                else np.random.normal(0, scale, array.shape)
            ).astype(rand_type)
    for executor in executors:
        for name, array in executor.arg_dict.items():
            array[:] = values[name]
        for name, array in executor.aux_dict.items():
            array[:] = (aux_params or {}).get(name, 0)
        for gradient in executor.grad_arrays if grad_req == "add" else ():
            if gradient is not None:
                gradient[:] = 0
    return executors


def _precision(array):
    return 2 if array.dtype is bfloat16 else np.dtype(array.dtype).itemsize


def _compare_runs(stage, executors, results, best, right, settings):
    """Compares the results of each executor but the best, dicts by name, with the expected ones."""
    rtol, atol, equal_nan, raise_on_err = settings
    for i, (executor, found) in enumerate(zip(executors, results)):
        if i == best:
            continue
        coarse = executor.outputs[0]
        for name, array in found.items():
            if array is None or right[name] is None:
                continue
            # A float16 network has the precision of float16 even for float32 arguments.
            least = min((array, coarse), key=_precision)
            tolerances = get_tols(least, right[name], rtol, atol)
            try:
                assert_almost_equal(array, right[name], *tolerances, equal_nan=equal_nan)
            except AssertionError as error:
                message = f"{stage}: {name} of context {i} differs from context {best}: {error}"
                if raise_on_err:
                    raise AssertionError(message) from None
                traceback.print_exc()


def check_consistency(
    sym: Symbol | Sequence[Symbol],
    ctx_list: Sequence[dict[str, Any]],
    scale: float = 1.0,
    grad_req: str | Sequence[str] | dict[str, str] = "write",
    arg_params: dict[str, Any] | None = None,
    aux_params: dict[str, Any] | None = None,
    rtol: Any = None,
    atol: Any = None,
    raise_on_err: bool = True,
    ground_truth: dict[str, Any] | None = None,
    equal_nan: bool = False,
    use_uniform: bool = False,
    rand_type: DType = np.float64,
) -> dict[str, Any]:
    """Raises AssertionError unless a symbol is consistent across devices and dtypes.

    Outputs and gradients must agree within the tolerances.

    Parameters
    ----------
    sym : Symbol, or one for each context
        The symbol or function to compute.
    ctx_list : list of dict
        Arguments of `Symbol.simple_bind`, such as ``{"ctx": mx.cpu(0), "data": (2, 3),
        "type_dict": {"data": "float32"}}``.
    scale : float, default 1
        The scale of random arguments.
    grad_req : str, list of str, or dict of str to str, default "write"
        With "null" gradients are not compared.
    arg_params, aux_params : dict of str to array, optional
        Arguments and auxiliary states; by default random ones, and zeros.
    rtol, atol : float, or dict of dtype to float, optional
        See `assert_almost_equal`.
    raise_on_err : bool, default True
        False prints differences instead.
    ground_truth : dict of str to array, optional
        The expected outputs and gradients; by default those of the first context with the most
        precise dtype.
    equal_nan : bool, default False
        True if NaN equals NaN.
    use_uniform : bool, default False
        True for uniform random arguments, False for normal ones.
    rand_type : default float64
        The dtype that random arguments are rounded to.

    Returns
    -------
    dict of str to array, the expected outputs and gradients.
    """
    executors = _executors(
        sym, ctx_list, grad_req, scale, arg_params, aux_params, use_uniform, rand_type
    )
    for executor in executors:
        executor.forward(is_train=False)
    precisions = [_precision(executor.outputs[0]) for executor in executors]
    best = precisions.index(max(precisions))
    settings = (rtol, atol, equal_nan, raise_on_err)

    def compare(stage, results):
        right = results[best] if ground_truth is None else ground_truth
        _compare_runs(stage, executors, results, best, right, settings)
        return right

    right = compare("predicting", [dict(executor.output_dict) for executor in executors])
    if grad_req == "null":
        return right
    for executor in executors:
        executor.forward(is_train=True)
    # The gradients of all outputs are the first executor's outputs, in the least precise dtype.
    golden = []
    for outputs in zip(*(executor.outputs for executor in executors)):
        golden.append(outputs[0].astype(min(outputs, key=_precision).dtype).asnumpy())
    for executor in executors:
        executor.backward(
            [
                nd.array(value, ctx=output.context, dtype=output.dtype)
                for value, output in zip(golden, executor.outputs)
            ]
        )
    return compare(
        "training", [{**executor.output_dict, **executor.grad_dict} for executor in executors]
    )

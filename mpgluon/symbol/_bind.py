"""Creates executors from symbols: `Symbol.bind` and `Symbol.simple_bind`."""

import numpy as np

from .. import _core, ndarray as nd
from ..base import MXNetError
from ..context import Context, computes
from ..executor import Executor
from ..ndarray._sparse.executor import gradient_stypes
from ..util import is_np_shape
from ._graph import entries_of, placement, row_name, states, topological
from ._infer import Inference, known, shown

# --- Binding --------------------------------------------------------------------------------------

_REQUESTS = ("null", "write", "add")


def _requests(grad_req, names, what):
    """Returns the grad_req of each argument."""
    if isinstance(grad_req, str):
        found = [grad_req] * len(names)
    elif isinstance(grad_req, (list, tuple)):
        if len(grad_req) != len(names):
            raise MXNetError(f"{what}: got {len(grad_req)} grad_reqs for {len(names)} arguments")
        found = list(grad_req)
    elif isinstance(grad_req, dict):
        found = [grad_req.get(name, "null") for name in names]
    else:
        raise TypeError(
            f"{what}: grad_req must be a str, a list or a dict, not {type(grad_req).__name__}"
        )
    for request in found:
        if request not in _REQUESTS:
            raise ValueError(f"grad_req must be in {_REQUESTS}, not {request!r}")
    return found


def _arrays(what, given, names, allow_missing):
    """Returns the arrays for the names, from a list or a dict."""
    if given is None:
        given = []
    if isinstance(given, dict):
        arrays = []
        for name in names:
            if name in given:
                arrays.append(given[name])
            elif allow_missing:
                arrays.append(None)
            else:
                raise ValueError(f"key `{name}` is missing in `{what}`")
    else:
        arrays = list(given)
        if len(arrays) != len(names):
            raise ValueError(
                f"Length of {what} does not match the number of arguments: {len(arrays)} for "
                f"{', '.join(names) or 'none'}"
            )
    for array in arrays:
        if not isinstance(array, nd.NDArray) and not (allow_missing and array is None):
            raise TypeError(
                f"Only accept list of NDArrays or dict of str to NDArray; {what} has "
                f"{type(array).__name__}"
            )
    return arrays


def _check_context(ctx):
    if not isinstance(ctx, Context):
        raise TypeError("Context type error")


def _check_groups(group2ctx):
    if group2ctx is not None and not (
        isinstance(group2ctx, dict) and all(isinstance(ctx, Context) for ctx in group2ctx.values())
    ):
        raise TypeError("group2ctx must be a dict of str to Context")


def _check_names(what, names):
    """Raises MXNetError if two variables have the same name, because names identify arrays."""
    twice = (
        [name for i, name in enumerate(names) if name in names[:i]]
        if len(set(names)) < len(names)
        else []
    )
    if twice:
        raise MXNetError(
            f"{what}: different variables are named {twice[0]!r}; use the same variable "
            "everywhere, or give each its own name"
        )


def bind(symbol, ctx, args, args_grad, grad_req, aux_states, group2ctx, shared_exec):
    """Implements `Symbol.bind`."""
    _check_context(ctx)
    _check_groups(group2ctx)
    names = symbol.list_arguments()
    _check_names("bind", names)
    args = _arrays("args", args, names, False)
    gradients = (
        [None] * len(names) if args_grad is None else _arrays("args_grad", args_grad, names, True)
    )
    auxiliary = _arrays("aux_states", aux_states, symbol.list_auxiliary_states(), False)
    if not group2ctx:
        moves = any(
            node.call is not None and node.call.copies for node in topological(entries_of(symbol))
        )
        for name, array in zip((*names, *symbol.list_auxiliary_states()), (*args, *auxiliary)):
            if computes(array.context) != computes(ctx) and not moves:
                raise MXNetError(
                    f"bind: the array of {name} is on {array.context}, but the executor is on "
                    f"{ctx}; pass devices in group2ctx, or move the array"
                )
    requests = _requests(grad_req, names, "bind")
    return Executor(symbol.__copy__(), ctx, args, gradients, requests, auxiliary, group2ctx)


def simple_bind(
    symbol,
    ctx,
    grad_req,
    type_dict,
    stype_dict,
    group2ctx,
    shared_arg_names,
    shared_exec,
    shared_buffer,
    shapes,
):
    """Implements `Symbol.simple_bind`."""
    _check_context(ctx)
    _check_groups(group2ctx)
    if shared_arg_names is not None and not isinstance(shared_arg_names, list):
        raise ValueError("shared_arg_names in simple_bind must be a list or None")
    if shared_buffer is not None and not isinstance(shared_buffer, dict):
        raise ValueError("shared_buffer in simple_bind must be dict or None")
    symbol = symbol.__copy__()
    order = topological(entries_of(symbol))
    written = states(order)
    variables = [node for node in order if node.call is None]
    arguments = [node for node in variables if node not in written]
    names = [node.name for node in arguments]
    _check_names("simple_bind", names)
    requests = _requests(grad_req, names, "simple_bind")
    descs = _infer(entries_of(symbol), variables, arguments, shapes, type_dict)
    devices = placement(order, group2ctx, {})

    def new(node, shared=None, buffer=None):
        shape, dtype = descs[node]
        return _new_array(node.name, shape, dtype, devices.get(node, ctx), shared or {}, buffer)

    parameters = () if shared_arg_names is None else set(shared_arg_names)
    taken, taken_gradients, taken_states = _shared(shared_exec, parameters, descs, variables)
    # Parameters never use the shared buffer, because other executors overwrite its arrays.
    stypes = {node: _stype_of(node, stype_dict) for node in arguments}
    sparse = _gradient_stypes(order, stypes)
    args = [
        nd.zeros(descs[node][0], devices.get(node, ctx), descs[node][1], stypes[node])
        if stypes[node] != "default"
        else new(node, taken, None if node.name in parameters else shared_buffer)
        for node in arguments
    ]
    gradients = [
        None
        if request == "null"
        else nd.zeros(descs[node][0], devices.get(node, ctx), descs[node][1], sparse[node])
        if sparse[node] != "default"
        else new(node, taken_gradients)
        for node, request in zip(arguments, requests)
    ]
    auxiliary = [new(node, taken_states) for node in variables if node in written]
    return Executor(
        symbol, ctx, args, gradients, requests, auxiliary, group2ctx, parameters=parameters
    )


def _stype_of(node, stype_dict):
    """Returns the storage type of a variable."""
    number = node.attrs.get("__storage_type__", "0")
    return (stype_dict or {}).get(node.name) or nd.ndarray.STORAGE_TYPES[int(number)]


def _gradient_stypes(order, stypes):
    """Returns the storage type of each variable's gradient. It is the variable's own storage type,
    unless an op overrides it."""
    found = dict(stypes)
    for node in order:
        if node.call is not None:
            inputs = [source for source, _ in node.inputs]
            told = gradient_stypes(
                row_name(node.call), node.attrs, [found.get(source) for source in inputs]
            )
            found.update({inputs[i]: stype for i, stype in told.items() if inputs[i] in stypes})
    return found


def _infer(entries, variables, arguments, shapes, type_dict):
    """Infers the shape and dtype of each variable.

    Raises MXNetError if shapes or dtypes contradict each other, or if the given ones do not
    determine all of them.
    """
    shapes = {
        name: tuple(shape) for name, shape in shapes.items() if isinstance(shape, (tuple, list))
    }
    if type_dict is None:
        types = {node.name: "float32" for node in arguments if "__dtype__" not in node.attrs}
    else:
        types = {name: _core.dtype_name(dtype) for name, dtype in type_dict.items()}
    try:
        inference = Inference(entries, shapes, types)
        inference.assume("float32")
    except MemoryError:
        raise
    except MXNetError as error:
        given = "".join(f"{name}: {shape}\n" for name, shape in shapes.items())
        raise MXNetError(f"simple_bind error. Arguments:\n{given}{error}") from None
    found = dict(zip(variables, inference.of(variables)))
    missing = [
        f"{node.name}: {shown(shape)}" for node, (shape, _) in found.items() if not known(shape)
    ]
    if missing:
        raise MXNetError(
            "simple_bind error. The shapes of these arguments cannot be inferred "
            f"({-1 if is_np_shape() else 0} is unknown): {', '.join(missing[:20])}"
        )
    return found


def _shared(executor, parameters, descs, variables):
    """Returns the arrays taken from another executor, as three dicts by name.

    These are the parameters, their gradients, and the states with an unchanged shape.
    """
    if not executor:
        return {}, {}, {}
    shapes = {node.name: descs[node][0] for node in variables}
    return (
        {name: array for name, array in executor.arg_dict.items() if name in parameters},
        {name: array for name, array in executor.grad_dict.items() if name in parameters},
        {
            name: array
            for name, array in executor.aux_dict.items()
            if array.shape == shapes.get(name)
        },
    )


def _new_array(name, shape, dtype, device, shared, buffer):
    """Returns the array of a variable.

    Uses the shared array of that name, if any. Otherwise, uses a part of the buffer's array of that
    name if it is large enough, or else creates a new array and stores it in the buffer.
    """
    array = shared.get(name)
    if array is not None:
        if array.shape != shape or _core.dtype_name(array.dtype) != dtype:
            raise MXNetError(
                f"simple_bind: the shared array of {name} is {array.dtype} {array.shape}, "
                f"expected {dtype} {shape}"
            )
        return array
    array = None if buffer is None else buffer.get(name)
    size = int(np.prod(shape))
    if (
        array is not None
        and array.size >= size
        and _core.dtype_name(array.dtype) == dtype
        and array.context == device
    ):
        return array if array.shape == shape else array.reshape((-1,))[:size].reshape(shape)
    array = nd.zeros(shape, ctx=device, dtype=dtype)
    if buffer is not None:
        buffer[name] = array
    return array

"""Ops written in Python: `CustomOp` computes, `CustomOpProp` describes, `register` names an op.

``mx.nd.Custom(x, op_type="name")`` runs an op immediately, ``mx.sym.Custom`` creates a node. In a
hybridized block or an executor, the compiled program is cut at the op, which runs on the host
between two parts and reads and writes arrays as in eager code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import _core, autograd, ndarray as nd, profiler
from ._internal import device_groups, graph_breaks, kinds
from ._internal.hints import near_names
from .base import MXNetError, is_floating
from .context import current_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ._core import Context, NDArray
    from ._internal.types import ArrayLike, Class
    from .symbol import Symbol


__all__ = [
    "CustomOp",
    "CustomOpProp",
    "OperatorArguments",
    "get_all_registered_operators",
    "get_operator_arguments",
    "register",
]
near_names(__name__, **dict.fromkeys(["NDArrayOp", "NumpyOp", "PythonOp"], "mx.operator.CustomOp"))


class OperatorArguments(NamedTuple):
    """The arguments of an op: the number of inputs and parameters, their names, and their types.

    Examples
    --------
    >>> mx.operator.get_operator_arguments("relu")
    OperatorArguments(narg=1, names=['data'], types=['NDArray-or-Symbol'])
    """

    narg: int
    names: list[str]
    types: list[str]


class CustomOp:
    """The base of op computations.

    Examples
    --------
    >>> class Square(mx.operator.CustomOp):
    ...     def forward(self, is_train, req, in_data, out_data, aux):
    ...         self.assign(out_data[0], req[0], in_data[0] ** 2)
    ...     def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
    ...         self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])
    >>> class SquareProp(mx.operator.CustomOpProp):
    ...     def create_operator(self, ctx, shapes, dtypes):
    ...         return Square()
    >>> _ = mx.operator.register("square_of_mine")(SquareProp)
    >>> nd.Custom(nd.array([1, 3]), op_type="square_of_mine").asnumpy()
    array([1., 9.], dtype=float32)
    """

    def forward(
        self,
        is_train: bool,
        req: list[str],
        in_data: list[NDArray],
        out_data: list[NDArray],
        aux: list[NDArray],
    ) -> None:
        """Computes `out_data` from `in_data`; all are lists of NDArray.

        Parameters
        ----------
        is_train : bool
            True if a gradient may be requested.
        req : list of str
            The write mode of each output; see `assign`.
        aux : list of NDArray
            Auxiliary states, which may be written.
        in_data : list of NDArray
            The inputs.
        out_data : list of NDArray
            The outputs, to write with `assign`.
        """
        raise NotImplementedError(f"{type(self).__name__}.forward is not defined")

    def backward(
        self,
        req: list[str],
        out_grad: list[NDArray],
        in_data: list[NDArray],
        out_data: list[NDArray],
        in_grad: list[NDArray],
        aux: list[NDArray],
    ) -> None:
        """Computes `in_grad` from the other arrays; `req` has the write mode of each gradient."""
        raise NotImplementedError(f"{type(self).__name__}.backward is not defined")

    def assign(self, dst: NDArray, req: str, src: ArrayLike) -> None:
        """Writes `src` to `dst`: overwrites for 'write' and 'inplace', adds for 'add', and skips
        for 'null'."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src
        elif req != "null":
            raise ValueError(
                f"assign: req must be 'null', 'write', 'inplace' or 'add', not {req!r}"
            )


class CustomOpProp:
    """The base of op descriptions. Parameters of a call are passed to the constructor as text.

    Parameters
    ----------
    need_top_grad : bool, default True
        True if backward reads the gradients of the outputs; False for a loss.

    Examples
    --------
    >>> class TwoOutputs(mx.operator.CustomOpProp):
    ...     def list_outputs(self):
    ...         return ["sum", "difference"]
    ...     def list_arguments(self):
    ...         return ["left", "right"]
    >>> TwoOutputs().infer_shape([[2, 3], [2, 3]])[1]
    [[2, 3], [2, 3]]
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Returns the names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Returns the names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Returns the names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list[Any]) -> tuple[Any, ...]:
        """Returns ``(input shapes, output shapes, shapes of auxiliary states)``.

        All input shapes but the first may be empty.
        """
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> tuple[Any, ...]:
        """Returns the dtypes, in the same form as `infer_shape`."""
        return (
            in_type,
            [in_type[0]] * len(self.list_outputs()),
            [in_type[0]] * len(self.list_auxiliary_states()),
        )

    def infer_storage_type(self, in_stype: list[str]) -> tuple[Any, ...]:
        """Returns the storage types ('default', 'row_sparse' or 'csr'), as in `infer_shape`.

        An op with sparse inputs must override it.
        """
        for i, stype in enumerate(in_stype):
            if stype != "default":
                raise ValueError(
                    f"input {i} is {stype}; an op with sparse inputs must define infer_storage_type"
                )
        return (
            in_stype,
            ["default"] * len(self.list_outputs()),
            ["default"] * len(self.list_auxiliary_states()),
        )

    def infer_storage_type_backward(
        self,
        ograd_stype: list[str],
        in_stype: list[str],
        out_stype: list[str],
        igrad_stype: list[str],
        aux_stype: list[str],
    ) -> tuple[Any, ...]:
        """Returns the storage types for backward, one list per argument.

        The result is ignored: gradients are always dense.
        """
        lists = (ograd_stype, in_stype, out_stype, igrad_stype, aux_stype)
        return tuple(["default"] * len(stypes) for stypes in lists)

    def declare_backward_dependency(
        self, out_grad: list[int], in_data: list[int], out_data: list[int]
    ) -> list[int]:
        """Returns the arrays that backward reads; the result is ignored, as all are kept."""
        return [*(out_grad if self.need_top_grad_ else ()), *in_data, *out_data]

    def create_operator(self, ctx: Context, in_shapes: list[Any], in_dtypes: list[Any]) -> CustomOp:
        """Creates the CustomOp for inputs of these shapes and dtypes."""
        raise NotImplementedError(f"{type(self).__name__}.create_operator is not defined")


_props = {}


def register(reg_name: str) -> Callable[[Class], Class]:
    """Registers a CustomOpProp class under ``op_type=reg_name``; a decorator.

    Examples
    --------
    >>> @mx.operator.register("double")
    ... class Double(mx.operator.CustomOpProp):
    ...     def create_operator(self, ctx, shapes, dtypes):
    ...         return DoubleOp()
    >>> class DoubleOp(mx.operator.CustomOp):
    ...     def forward(self, is_train, req, in_data, out_data, aux):
    ...         self.assign(out_data[0], req[0], in_data[0] * 2)
    ...     def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
    ...         self.assign(in_grad[0], req[0], out_grad[0] * 2)
    >>> nd.Custom(nd.array([1, 2]), op_type="double").asnumpy()
    array([2., 4.], dtype=float32)
    """

    def decorate(prop):
        if not (isinstance(prop, type) and issubclass(prop, CustomOpProp)):
            raise TypeError(f"register: {prop!r} is not a subclass of CustomOpProp")
        _props[reg_name] = prop
        return prop

    return decorate


def _known(shape):
    return shape is not None and all(size > 0 for size in shape)


class CustomCall(graph_breaks.PythonCall):
    """A call of a registered op with parameters."""

    name = "Custom"

    def __init__(self, op_type: str, params: dict[str, Any]) -> None:
        if op_type not in _props:
            raise MXNetError(
                f"Custom: no op is registered as {op_type!r}; the registered ops are: "
                f"{', '.join(sorted(_props)) or 'none'} (mx.operator.register)"
            )
        self.op_type = op_type
        self.params: dict[str, str] = {key: str(value) for key, value in params.items()}
        self.prop: CustomOpProp = self._ask(
            "the constructor", lambda: _props[op_type](**self.params)
        )
        self.arguments: list[str] = self._ask(
            "list_arguments", lambda: list(self.prop.list_arguments())
        )
        self.auxiliary: list[str] = self._ask(
            "list_auxiliary_states", lambda: list(self.prop.list_auxiliary_states())
        )
        self.outputs: list[str] = self._ask("list_outputs", lambda: list(self.prop.list_outputs()))
        self.loss: bool = not self.prop.need_top_grad_

    def _ask(self, what, function):
        """Runs the user's code; wraps its exceptions in an MXNetError that names the op."""
        try:
            return function()
        except MXNetError:
            raise
        except Exception as error:
            raise MXNetError(
                f"Custom: {what} of {self.op_type!r} failed: {type(error).__name__}: {error}"
            ) from error

    # As a node

    def num_inputs(self, given: int) -> int:
        return len(self.arguments) + len(self.auxiliary)

    def input_names(self, count: int) -> list[str]:
        return (*self.arguments, *self.auxiliary)[:count]

    def output_names(self, count: int) -> list[str]:
        return tuple(self.outputs)

    def states(self, count: int) -> list[bool]:
        return tuple([False] * len(self.arguments) + [True] * len(self.auxiliary))

    def text(self, name: str) -> str:
        return self.params[name]

    def infer(self, inputs: list[Any], outputs: list[Any], train: bool, exact: bool = False) -> Any:
        """Returns (completed inputs, outputs) as (shape, dtype) pairs.

        With `exact`, all shapes are known and a size of 0 means an empty axis, not an unknown one.
        """
        shapes, dtypes = (
            self._infer_shapes([desc[0] for desc in inputs], exact),
            self._infer_dtypes([desc[1] for desc in inputs]),
        )
        pairs = list(zip(shapes, dtypes))
        completed = [
            (new[0] if _known(new[0]) and not exact else old[0], old[1] or new[1])
            for old, new in zip(inputs, pairs)
        ]
        found = pairs[len(inputs) :]
        if not exact:
            from .symbol._infer import sized

            found = [(shape if shape is None else sized(shape), dtype) for shape, dtype in found]
        return completed, found

    def _infer_shapes(self, shapes, exact):
        args, total = shapes[: len(self.arguments)], len(shapes) + len(self.outputs)
        if not exact and not all(map(_known, args[:1])):
            return [None] * total
        try:
            found = self.prop.infer_shape([list(shape or ()) for shape in args])
            groups = [[tuple(map(int, shape)) for shape in group] for group in (*found, ())[:3]]
            if any(size < 0 for group in groups for shape in group for size in shape):
                raise ValueError(f"a negative size in {groups}")
        except Exception as error:
            if exact or all(map(_known, args)):
                raise MXNetError(
                    f"Custom: infer_shape of {self.op_type!r} failed for {args}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            return [None] * total  # the user's function may fail if it needs unknown shapes
        self._check("infer_shape", groups)
        ins, outs, aux = groups
        known = [shape if exact or _known(shape) else None for shape in shapes]
        self._agree("infer_shape", known, [*ins, *aux])
        return [*ins, *aux, *outs]

    def _agree(self, what, given, wanted):
        """Checks the known inputs and states against the declaration of the op's class."""
        for name, old, new in zip((*self.arguments, *self.auxiliary), given, wanted):
            if old is not None and old != new:
                raise MXNetError(
                    f"Custom: {what} of {self.op_type!r} expected {name} to be {new}, got {old}"
                )

    def _infer_dtypes(self, dtypes):
        args = dtypes[: len(self.arguments)]
        if args and args[0] is None:
            return [None] * (len(dtypes) + len(self.outputs))
        given = [
            np.dtype(name or args[0]).type if (name or args[0]) != "bfloat16" else _core.bfloat16
            for name in args
        ]
        groups = self._ask(
            "infer_type",
            lambda: [
                [_core.dtype_name(dtype) for dtype in group]
                for group in (*self.prop.infer_type(given), ())[:3]
            ],
        )
        self._check("infer_type", groups)
        ins, outs, aux = groups
        self._agree("infer_type", dtypes, [*ins, *aux])
        return [*ins, *aux, *outs]

    def _check(self, what, groups):
        for group, names, kind in zip(
            groups,
            (self.arguments, self.outputs, self.auxiliary),
            ("inputs", "outputs", "auxiliary states"),
        ):
            if len(group) != len(names):
                raise MXNetError(
                    f"Custom: {what} of {self.op_type!r} returned {len(group)} {kind}; it must "
                    f"return one for each of: {', '.join(names) or 'none'}"
                )

    # Running

    def run(self, inputs: Sequence[NDArray], device: Context | None = None) -> list[NDArray]:
        """Computes the outputs for arrays of the arguments and auxiliary states."""
        count = len(self.arguments)
        inputs = [*device_groups.gathered(inputs[:count]), *inputs[count:]]
        descs = [(array.shape, _core.dtype_name(array.dtype)) for array in inputs]
        ctx = (inputs[0].context if inputs else device) or current_context()
        strays = [
            f"{name} on {array.context}"
            for name, array in zip(self.input_names(len(inputs)), inputs)
            if array.context != ctx
        ]
        if strays:
            raise MXNetError(
                f"Custom: the inputs of {self.op_type!r} are on different devices: "
                f"{', '.join(strays)}, but the other inputs are on {ctx}; move one with "
                "as_in_context"
            )
        _, found = self.infer(descs, [], autograd.is_training(), exact=True)
        stypes = self._infer_storages([array.stype for array in inputs[:count]])
        numpy = kinds.is_numpy(inputs[0]) if inputs else _core.is_np_array()
        if any(array._in_trace for array in inputs):
            tracer = graph_breaks.current()
            if tracer is None:
                raise MXNetError(
                    f"Custom: {self.op_type!r} runs Python code on values, which this trace "
                    "does not support"
                )
            return tracer.host(
                f"Custom {self.op_type}",
                lambda arrays: self._compute(arrays, found, ctx, stypes, numpy),
                inputs,
                [(shape, dtype, ctx, numpy) for shape, dtype in found],
            )
        return self._compute(inputs, found, ctx, stypes, numpy)

    def _infer_storages(self, stypes):
        """Returns the storage types of the outputs."""
        found = self._ask("infer_storage_type", lambda: self.prop.infer_storage_type(stypes))
        groups = [list(group) for group in (*found, ())[:3]]
        self._check("infer_storage_type", groups)
        return groups[1]

    def _run(self, what, name, ctx, function):
        """Runs the user's code on values, on the device and with a name in profiles."""
        path = "/".join(filter(None, (_core.current_scope(), name)))
        profiler.custom_scopes[path] = name
        span = profiler.Task("Custom Operator", f"{name}::pure_python")
        with _core.Scope((_core.set_scope, _core.intern_scope(path))), ctx:
            span.start()
            try:
                return self._ask(what, function)
            finally:
                span.stop()

    def _compute(self, inputs, found, ctx, stypes, numpy):
        count = len(self.arguments)
        args, aux = (
            [array.detach() for array in inputs[:count]],
            [array.detach() for array in inputs[count:]],
        )
        outputs = [
            kinds.of_kind(nd.zeros(shape, ctx=ctx, dtype=dtype, stype=stype), numpy)
            for (shape, dtype), stype in zip(found, stypes)
        ]
        train = autograd.is_training()

        def forward():
            op = self.prop.create_operator(
                ctx, [array.shape for array in args], [array.dtype for array in args]
            )
            op.forward(
                is_train=train,
                req=["write"] * len(outputs),
                in_data=args,
                out_data=outputs,
                aux=aux,
            )
            return op

        what = f"Custom: forward of {self.op_type!r}"
        with autograd.refuse_release(what, inputs[:count]), autograd.pause(train_mode=train):
            op = self._run("forward", self.op_type, ctx, forward)
        if not autograd.is_recording():
            return outputs
        read_args, read_outputs = _saved(args), _saved(outputs)

        def backward(*out_grads):
            grads = [_dense_zeros(array) for array in args]
            tops = [
                _dense_zeros(array) if grad is None else grad
                for grad, array in zip(out_grads, outputs)
            ]
            req = ["write" if is_floating(array.dtype) else "null" for array in args]
            with autograd.pause(train_mode=train):
                self._run(
                    "backward",
                    f"_backward_{self.op_type}",
                    ctx,
                    lambda: op.backward(
                        req=req,
                        out_grad=tops,
                        in_data=read_args(),
                        out_data=read_outputs(),
                        in_grad=grads,
                        aux=aux,
                    ),
                )
            return grads

        dense = [
            array if array.stype == "default" else array.tostype("default")
            for array in (*inputs[:count], *outputs)
        ]
        return _core.record_function(backward, dense[:count], dense[count:])


def _saved(arrays):
    """Returns a function that restores the arrays' present contents, even after overwrites.

    Sparse arrays are returned with the contents at the time of the call.
    """
    dense = [array.stype == "default" for array in arrays]
    kept = _core.SavedContents([array for array, is_dense in zip(arrays, dense) if is_dense])

    def read():
        found = iter(kept.arrays())
        return [next(found) if is_dense else array for array, is_dense in zip(arrays, dense)]

    return read


def _dense_zeros(array):
    return kinds.like(nd.zeros(array.shape, ctx=array.context, dtype=array.dtype), array)


def custom_array(
    *data: NDArray, op_type: str | None = None, name: str | None = None, **kwargs: Any
) -> NDArray | Any:
    """Implements ``mx.nd.Custom``."""
    arrays = {key: value for key, value in kwargs.items() if isinstance(value, nd.NDArray)}
    call = CustomCall(op_type, {key: value for key, value in kwargs.items() if key not in arrays})
    names = call.input_names(call.num_inputs(0))
    if len(data) > len(names):
        raise TypeError(f"Custom: {op_type!r} needs {len(names)} inputs, got {len(data)}")
    _refuse_twice(op_type, names[: len(data)], arrays)
    given = {**dict(zip(names, data)), **arrays}
    for key in (*arrays, *names):
        if key not in names or not isinstance(given.get(key), nd.NDArray):
            raise TypeError(
                f"Custom: the inputs of {op_type!r} must be the NDArrays {', '.join(names)}; "
                f"{key!r} is {_said_of(key, names, given)}"
            )
    outputs = call.run([given[key] for key in names])
    return outputs[0] if len(outputs) == 1 else outputs


def _refuse_twice(op_type, by_place, by_name):
    for key in by_place:
        if key in by_name:
            raise TypeError(f"Custom: {op_type!r} got {key!r} twice, by position and by name")


def _said_of(key, names, given):
    """Returns the explanation for an error message why `key` is not an input."""
    if key not in names:
        return "none of them"
    return f"a {type(given[key]).__name__}" if key in given else "missing"


def custom_symbol(
    *data: Symbol,
    op_type: str | None = None,
    name: str | None = None,
    attr: dict[str, str] | None = None,
    **kwargs: Any,
) -> Symbol:
    """Implements ``mx.sym.Custom``."""
    from .name import NameManager
    from .symbol import Symbol
    from .symbol._functions import attributes, is_numpy, single, symbol_type
    from .symbol._graph import make

    given = {key: value for key, value in kwargs.items() if isinstance(value, Symbol)}
    extra = {
        key: str(value)
        for key, value in kwargs.items()
        if key.startswith("__") and key.endswith("__")
    }
    params = {key: value for key, value in kwargs.items() if key not in given and key not in extra}
    call = CustomCall(op_type, params)
    names = call.input_names(call.num_inputs(0))
    if len(data) > len(names):
        raise TypeError(f"Custom: {op_type!r} needs {len(names)} inputs, got {len(data)}")
    _refuse_twice(op_type, names[: len(data)], given)
    for key, value in zip(names, data):
        given[key] = value
    entries = {key: single(value, f"Custom: {key}") for key, value in given.items()}
    texts = {"op_type": op_type, **call.params, **attributes(attr, extra)}
    node = make(call, texts, NameManager.current().get(name, "custom"), None, entries)
    kind = symbol_type(is_numpy("Custom", list(given.values())))
    return kind([(node, i) for i in range(node.num_outputs)])


def get_all_registered_operators() -> list[str]:
    """Returns the names of all ops.

    Examples
    --------
    >>> "softmax" in mx.operator.get_all_registered_operators()
    True
    """
    return sorted(_core.ops())


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """Returns the inputs and parameters of an op as OperatorArguments.

    Examples
    --------
    >>> mx.operator.get_operator_arguments("softmax").names
    ['data', 'length', 'axis', 'temperature', 'dtype', 'use_length']
    """
    info = _core.get_op(op_name).describe()
    names = [entry["name"] for entry in info["inputs"]] + [
        param["name"] for param in info["params"]
    ]
    types = ["NDArray-or-Symbol"] * len(info["inputs"]) + [
        str(param.get("kind", param.get("type", ""))) for param in info["params"]
    ]
    return OperatorArguments(len(names), names, types)

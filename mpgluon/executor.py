"""`Executor`: a symbol bound to arrays.

An executor runs its symbol like a hybridized block: the nodes are traced into one graph over all
devices, which is placed, planned and lowered to one program per device for the forward pass, and
one for the backward pass.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from . import _core, autograd, ndarray as nd
from ._internal import device_groups, graph_breaks
from .base import MXNetError
from .context import computes
from .ndarray._control import dynamic
from .ndarray._sparse.executor import executor_inputs, is_handled, is_sparse, run_node
from .ndarray._sparse.row_gradients import RowGradientWeight
from .symbol._graph import entries_of, made_at, placement, states, topological
from .symbol._infer import Inference, known, with_open_shapes
from .symbol._monitored_run import WatchedRun, deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ._core import Context, NDArray
    from ._internal.types import ArrayLike, Arrays, Groups, Shape
    from .symbol import Symbol


__all__ = ["Executor"]


class Program:
    """The order in which the nodes of a symbol are called, and their devices."""

    def __init__(
        self,
        entries: Sequence[Any],
        order: Sequence[Any],
        devices: Sequence[Any],
        ctx: Context,
        groups: bool = False,
        parameters: Sequence[Any] = (),
    ) -> None:
        self.order = order
        self.place: dict[Any, int] = {node: i for i, node in enumerate(order)}
        self.groups = groups  # True if each node runs in the group of its device
        # (index, node, sources, device of the node)
        self.steps: list[tuple[Any, ...]] = []
        written = states(order)
        variables = [node for node in order if node.call is None]
        self.arguments: list[Any] = [node for node in variables if node not in written]
        self.auxiliary: list[Any] = [node for node in variables if node in written]
        for node in order:
            if node.call is not None:
                sources = [(self.place[source], index) for source, index in node.inputs]
                self.steps.append((self.place[node], node, sources, devices.get(node, ctx)))
        self.heads: list[tuple[int, int]] = [(self.place[node], index) for node, index in entries]
        # True if the host reads values between nodes, so the symbol is compiled in parts.
        self.splits: bool = any(
            node.call is not None and (node.call.dynamic or getattr(node.call, "splits", False))
            for node in order
        )
        self._entries = entries
        self._open = with_open_shapes(order)
        self._inputs = [self.place[node] for node in (*self.arguments, *self.auxiliary)]
        # Indices of the arrays that are bound to compiled calls: parameters and states. Empty if
        # the caller does not name the parameters.
        named, count = set(parameters), len(self._inputs)
        self.bound: list[int] = [
            i
            for i in range(count)
            if named
            and not self.splits
            and (i >= len(self.arguments) or self.arguments[i].name in named)
        ]
        self.given: list[int] = [i for i in range(count) if i not in set(self.bound)]

    def trace(self, *arrays: Any) -> Any:
        """Calls `run` with the argument order of compiled functions: bound arrays come last."""
        in_order = [None] * len(arrays)
        for i, array in zip((*self.given, *self.bound), arrays):
            in_order[i] = array
        return self.run(in_order)

    def run(
        self,
        arrays: Sequence[NDArray],
        ctx: Context | None = None,
        watched: WatchedRun | None = None,
        sparse: bool = False,
    ) -> Any:
        """Computes the outputs for the arrays of the arguments, then of the auxiliary states.

        `ctx` is the device of arrays that ops create without inputs, unless the node names one.
        `watched` calls the nodes for a monitor. `sparse` is True if some arrays may be sparse.
        """
        values = [None] * len(self.order)
        for place, array in zip(self._inputs, arrays):
            values[place] = [array]
        closed = self._closed(arrays) if self._open else {}
        for place, node, sources, device in self.steps:
            inputs = [values[at][index] for at, index in sources]
            call = closed.get(node, node.call)
            try:
                with device_groups.on(device) if self.groups else nullcontext():
                    if watched is not None:
                        outputs = watched.apply(node, call, place, sources, inputs, device or ctx)
                    elif sparse and any(is_handled(array) for array in inputs):
                        outputs = run_node(call, node.attrs, inputs)
                    elif call.dynamic:
                        outputs = dynamic(call, inputs)
                    else:
                        outputs = call.run(inputs, device or ctx)
            except MXNetError as error:
                line = "" if "\n  made at " in str(error) else made_at(node)
                raise type(error)(f"Error in operator {node.name}: {error}{line}") from None
            values[place] = outputs
        return [values[at][index] for at, index in self.heads]

    def _closed(self, arrays):
        """Infers the shapes of nodes that create arrays with unknown sizes. Returns the calls of
        these nodes with complete shapes."""
        shapes = {self.order[place].name: array.shape for place, array in zip(self._inputs, arrays)}
        calls = {}
        for node, (shape, _) in zip(
            self._open, Inference(self._entries, shapes, {}).of(self._open)
        ):
            if known(shape):
                names = {
                    param["name"] for param in _core.get_op(node.call.name).describe()["params"]
                }
                params = {key: value for key, value in node.attrs.items() if key in names}
                calls[node] = _core.OpCall(node.call.name, {**params, "shape": shape})
        return calls


def _dict_of(names, arrays):
    if len(set(names)) != len(names):
        raise ValueError(f"Duplicate names detected, {names}")
    return dict(zip(names, arrays))


class Executor:
    """A symbol with arrays for its arguments, gradients and auxiliary states.

    `Symbol.bind` and `Symbol.simple_bind` create it.

    Attributes
    ----------
    arg_arrays, grad_arrays, aux_arrays : list of NDArray
        In the order of the symbol's `list_arguments` and `list_auxiliary_states`; None for an
        argument without a gradient.
    arg_dict, grad_dict, aux_dict, output_dict : dict of str to NDArray
        The same arrays by name.
    outputs : list of NDArray
        The results of the last forward. Each forward reuses the same NDArray objects.

    Examples
    --------
    >>> x, y = mx.sym.var("x"), mx.sym.var("y")
    >>> executor = (x * y).bind(mx.cpu(), {"x": nd.array([1, 2]), "y": nd.array([3, 4])})
    >>> executor.forward()[0].asnumpy()
    array([3., 8.], dtype=float32)
    """

    def __init__(
        self,
        symbol: Symbol,
        ctx: Context,
        arg_arrays: Sequence[NDArray],
        grad_arrays: Sequence[NDArray | None],
        grad_req: Sequence[str],
        aux_arrays: Sequence[NDArray],
        group2ctx: Groups | None = None,
        base: Executor | None = None,
        parameters: Sequence[Any] = (),
    ) -> None:
        self._symbol = symbol
        self._ctx = ctx
        self._group2ctx = dict(group2ctx) if group2ctx else None
        self.arg_arrays = arg_arrays
        self.grad_arrays = grad_arrays
        self.aux_arrays = aux_arrays
        self._requests = grad_req
        self._grad_req = grad_req
        self._program = self._make_program(parameters) if base is None else base._program
        # Executors created from each other by reshape share their compiled programs.
        kind = graph_breaks.Split if self._program.splits else _core.CachedOp
        self._call = kind(self._program.trace, {}) if base is None else base._call
        # One-element list: `_mark` of the executor whose arrays are bound to `_call`.
        self._latest = [None] if base is None else base._latest
        self._mark = object()
        self._monitor = None
        self._monitor_all = False
        self._outputs = None
        self._heads = None  # outputs of the recorded forward pass
        self._watched = None  # `WatchedRun` of that pass if a monitor is installed
        self._trained = False
        self._check_devices()
        # The variables on the tape are aliases of the arrays, because the user's own arrays must
        # not be marked as variables.
        wanted = [
            i
            for i, (grad, request) in enumerate(zip(grad_arrays, grad_req))
            if grad is not None and request != "null"
        ]
        self._wanted = wanted
        arrays = (*arg_arrays, *aux_arrays, *[grad for grad in grad_arrays if grad is not None])
        # If some arrays are sparse, the program is not compiled: its nodes run one by one.
        self._sparse = any(array.stype != "default" for array in arrays)
        if self._sparse:
            self._inputs = executor_inputs(arg_arrays, grad_arrays, grad_req, aux_arrays)
            self._casts, self._flows = {}, None
            return
        self._inputs = [array.detach() for array in (*arg_arrays, *aux_arrays)]
        # If a gradient array's dtype differs from its argument's, the gradient is computed in a
        # separate array and cast.
        self._casts = {
            i: grad_arrays[i].astype(arg_arrays[i].dtype)
            for i in wanted
            if grad_arrays[i].dtype != arg_arrays[i].dtype
        }
        if wanted:
            targets = [self._casts.get(i, grad_arrays[i]) for i in wanted]
            autograd.mark_variables(
                [self._inputs[i] for i in wanted], targets, [grad_req[i] for i in wanted]
            )
            self._check_gradients()
        # For each output, True if its gradient reaches an argument that needs a gradient
        self._flows = None

    def _make_program(self, parameters):
        order = topological(entries_of(self._symbol))
        written = states(order)
        variables = [node for node in order if node.call is None]
        arguments = [node for node in variables if node not in written]
        auxiliary = [node for node in variables if node in written]
        there = {}
        if self._group2ctx:
            for node, array in zip((*arguments, *auxiliary), (*self.arg_arrays, *self.aux_arrays)):
                there[node] = array.context
        devices = placement(order, self._group2ctx, there)
        return Program(
            entries_of(self._symbol), order, devices, self._ctx, bool(self._group2ctx), parameters
        )

    def __repr__(self) -> str:
        arguments = [
            f"{node.name} {tuple(array.shape)} on {array.context}"
            for node, array in zip(self._program.arguments, self.arg_arrays)
        ]
        more = f", ... {len(arguments)} in all" if len(arguments) > 4 else ""
        gradients = sum(request != "null" for request in self._requests)
        return f"Executor({', '.join(arguments[:4])}{more}; {gradients} with gradients)"

    def _check_devices(self):
        for node, grad, array in zip(self._program.arguments, self.grad_arrays, self.arg_arrays):
            if grad is not None and grad.shape != array.shape:
                raise MXNetError(
                    f"the gradient array of {node.name} has shape {grad.shape}, but the "
                    f"argument has shape {array.shape}"
                )
            if grad is not None and computes(grad.context) != computes(array.context):
                raise MXNetError(
                    f"the gradient array of {node.name} is on {grad.context}, but the argument "
                    f"is on {array.context}"
                )

    def _check_gradients(self):
        """Raises an error for an op without a gradient between an output and an argument that needs
        a gradient.

        It runs when the symbol is bound.
        """
        program = self._program
        sources = {place: [at for at, _ in inputs] for place, _, inputs, _ in program.steps}
        seen, stack = set(), [place for place, _ in program.heads]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            node = program.order[at]
            if node.call is None:
                continue
            if node.call.gradient_missing and any(self._reaches(source) for source in sources[at]):
                raise MXNetError(
                    f"{node.name}: {node.call.name} has no gradient; bind with grad_req='null' "
                    "for its inputs, or put BlockGrad after it"
                )
            if node.call.differentiable:
                stack.extend(sources[at])

    # Running

    def forward(self, is_train: bool = False, **kwargs: ArrayLike) -> list[NDArray]:
        """Computes the outputs and returns them.

        Parameters
        ----------
        is_train : bool, default False
            True if layers such as Dropout behave as in training.
        **kwargs : NDArray or numpy.ndarray
            New values for arguments. TypeError for an unknown name, ValueError for another shape.
        """
        if kwargs:
            arguments = self.arg_dict
            for name, array in kwargs.items():
                if not isinstance(array, (nd.NDArray, np.ndarray)):
                    raise ValueError("only accept keyword argument of NDArrays and numpy.ndarray")
                if name not in arguments:
                    raise TypeError(
                        f"Unknown argument {name}; the arguments are {', '.join(arguments)}"
                    )
                if arguments[name].shape != tuple(array.shape):
                    raise ValueError(
                        f"Shape not match! Argument {name}, need: {arguments[name].shape}, "
                        f"received: {array.shape}"
                    )
                arguments[name][:] = array
        self._trained = bool(is_train)
        self._run(bool(is_train), bool(is_train and self._wanted))
        return self.outputs

    def _run(self, train, record):
        self._heads = None  # frees the values that an earlier forward kept for its backward
        self._watched = None
        with autograd.record(train_mode=train) if record else autograd.pause(train_mode=train):
            if self._sparse:
                for held, array in zip(self._inputs, (*self.arg_arrays, *self.aux_arrays)):
                    if held is not array and held.stype != "default":
                        held[:] = array
                results = self._program.run(self._inputs, sparse=True)
            elif self._monitor is not None:
                self._watched = WatchedRun(self._watch, self._monitor_all, record)
                results = self._program.run(self._inputs, watched=self._watched)
            else:
                results = self._call_with(self._inputs, self._mark)
        # As in MXNet, executors return NDArrays, also for symbols of mx.sym.np.
        results = [
            array.as_nd_ndarray() if isinstance(array, _core.ndarray) else array
            for array in results
        ]
        if record:
            self._heads = [array.on_tape() if is_sparse(array) else array for array in results]
        if self._outputs is None or self._sparse:
            self._outputs = [array.detach() for array in results]
        else:
            for array, result in zip(self._outputs, results):
                _core.replace_array(array, result)

    def _call_with(self, arrays, mark):
        """Runs the compiled call; `mark` identifies the set of bound arrays."""
        if self._program.bound and self._latest[0] is not mark:
            self._call.bind([arrays[i] for i in self._program.bound])
            self._latest[0] = mark
        return self._call(*[arrays[i] for i in self._program.given])

    def _watch(self, name, array):
        self._monitor(name, array.detach())

    @property
    def outputs(self) -> list[NDArray]:
        """The outputs of the last `forward`, a list of NDArray.

        Without an earlier `forward` they are computed now, in prediction mode.
        """
        if self._outputs is None:
            self._run(False, False)
        return self._outputs

    def backward(
        self, out_grads: Arrays | dict[str, NDArray] | None = None, is_train: bool = True
    ) -> None:
        """Computes the gradients of the arguments into their gradient arrays.

        Parameters
        ----------
        out_grads : NDArray, list of NDArray or dict of str to NDArray, optional
            Gradients of the outputs. Outputs of loss layers (SoftmaxOutput, MakeLoss, ...) need no
            gradient.
        is_train : bool, default True
            The mode of the gradient's ops.
        """
        if out_grads is None:
            grads = [None] * len(self._program.heads)
        elif isinstance(out_grads, nd.NDArray):
            grads = [out_grads]
        elif isinstance(out_grads, dict):
            grads = [out_grads[name] for name in self._symbol.list_outputs()]
        else:
            grads = list(out_grads)
        for grad in grads if out_grads is not None else ():
            if not isinstance(grad, nd.NDArray):
                raise TypeError("inputs must be NDArray")
        if not self._wanted:
            return
        # MXNet ignores excess gradients.
        grads = (grads + [None] * len(self._program.heads))[: len(self._program.heads)]
        if self._flows is None:
            self._flows = [self._reaches(at) for at, _ in self._program.heads]
        self._check_heads(grads)
        if self._heads is None:
            self._run(self._trained, True)
        if self._watched is not None:
            self._backward_watched(grads, is_train)
            return
        # Include heads without a gradient, because they may depend on a loss op, which creates its
        # own gradient.
        pairs = [(head, grad) for head, grad in zip(self._heads, grads) if _core.on_tape(head)]
        for i in self._wanted:
            self._inputs[i]._fresh_grad = False
        if pairs:
            heads, head_grads = zip(
                *[(head, self._gradient_for(head, grad)) for head, grad in pairs]
            )
            autograd.backward(list(heads), list(head_grads), retain_graph=True, train_mode=is_train)
        for i in self._wanted:
            if self._requests[i] == "write" and not self._inputs[i]._fresh_grad:
                self.grad_arrays[i][:] = 0
            elif isinstance(self._inputs[i], RowGradientWeight):
                self.grad_arrays[i][:] = self._inputs[i].gradient
            elif i in self._casts:
                self.grad_arrays[i][:] = self._casts[i].astype(self.grad_arrays[i].dtype)

    def _backward_watched(self, grads, is_train):
        """Runs backward after a forward that a monitor watched."""
        heads = [self._gradient_for(head, grad) for head, grad in zip(self._heads, grads)]
        found = self._watched.backward(self._program, heads, is_train)
        for i in self._wanted:
            place = self._program.place[self._program.arguments[i]]
            deliver(found.get((place, 0)), self.grad_arrays[i], self._requests[i])
        self._heads = self._watched = None  # the tapes can be used only once

    def _gradient_for(self, head, grad):
        """Converts a head's gradient to the head's device and dtype."""
        if grad is None:
            return None
        grad = grad if grad.dtype == head.dtype else grad.astype(head.dtype)
        return grad.as_in_context(head.context)

    def _check_heads(self, grads):
        for (at, index), grad, flows in zip(self._program.heads, grads, self._flows):
            node = self._program.order[at]
            if flows and grad is None and not (node.call is not None and node.call.loss):
                raise MXNetError(
                    f"backward: the output {node.output_name(index)} is not the output of a "
                    "loss layer, so out_grads must have a gradient for it; to minimize the "
                    "output itself, bind mx.sym.make_loss of it"
                )

    def _reaches(self, head):
        """True if the gradient of an output reaches an argument that needs a gradient."""
        program = self._program
        wanted = {program.place[program.arguments[i]] for i in self._wanted}
        sources = {place: [at for at, _ in inputs] for place, _, inputs, _ in program.steps}
        seen, stack = set(), [head]
        while stack:
            at = stack.pop()
            if at in wanted:
                return True
            if at in seen:
                continue
            seen.add(at)
            call = program.order[at].call
            if call is not None and call.differentiable:
                stack.extend(sources[at])
        return False

    # Arrays by name

    @cached_property
    def arg_dict(self) -> dict[str, NDArray]:
        """The argument arrays by name, a dict of str to NDArray.

        Raises ValueError if two arguments have the same name.
        """
        return _dict_of([node.name for node in self._program.arguments], self.arg_arrays)

    @cached_property
    def grad_dict(self) -> dict[str, NDArray | Any]:
        """The gradient arrays by argument name.

        The value is None if `grad_req` is ``'null'`` or no array was given.
        """
        return _dict_of([node.name for node in self._program.arguments], self.grad_arrays)

    @cached_property
    def aux_dict(self) -> dict[str, NDArray]:
        """The arrays of auxiliary states (moving averages, ...) by name."""
        return _dict_of([node.name for node in self._program.auxiliary], self.aux_arrays)

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """The arrays of `outputs` by output name, such as ``fc_output``."""
        return _dict_of(self._symbol.list_outputs(), self.outputs)

    def copy_params_from(
        self,
        arg_params: dict[str, NDArray],
        aux_params: dict[str, NDArray] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copies values into arguments and auxiliary states, by name.

        Parameters
        ----------
        arg_params, aux_params : dict of str to NDArray
            Values by name, with the bound shapes.
        allow_extra_params : bool, default False
            True to ignore names that the symbol doesn't have; otherwise they raise ValueError.

        MXNetError for an array of another shape.
        """
        _core.at_once(*self._copies(arg_params, aux_params, allow_extra_params))

    def _copies(self, arg_params, aux_params, allow_extra_params):
        """Returns the changes (`_core.at_once`) that copy the values.

        Every operation that may fail runs before this method returns, so the copies are all or
        nothing.
        """
        changes = []
        for arrays, there, what in (
            (arg_params, self.arg_dict, "arguments"),
            (aux_params or {}, self.aux_dict, "auxiliary states"),
        ):
            for name, array in arrays.items():
                target = there.get(name)
                if target is not None:
                    if array.shape != target.shape:
                        raise MXNetError(
                            f"copy_params_from: {name} has shape {array.shape}, expected "
                            f"{target.shape}"
                        )
                    if array is not target:
                        value = array.astype(target.dtype, copy=False)
                        changes += (
                            target.changes_to_copy(value)
                            if is_sparse(target)
                            else [(value.tostype("default").copyto, target)]
                        )
                elif not allow_extra_params:
                    raise ValueError(f'Find name "{name}" that is not in the {what}')
        return changes

    def set_monitor_callback(
        self, callback: Callable[[str, NDArray], Any] | None, monitor_all: bool = False
    ) -> None:
        """Runs the graph node by node and calls ``callback(name, array)`` with every output.

        Parameters
        ----------
        callback : function, or None to run the compiled programs again
            Called with the name of an output and the array.
        monitor_all : bool, default False
            True to call it with the inputs of nodes as well.
        """
        self._monitor = callback
        self._monitor_all = monitor_all

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Shape
    ) -> Executor:
        """Returns an executor of the same symbol for other shapes.

        It shares the arrays whose shapes are unchanged, and the memory of those that shrink.

        Parameters
        ----------
        partial_shaping : bool, default False
            True if arguments not named here may change their shape.
        allow_up_sizing : bool, default False
            True if arrays may grow; a larger array gets new memory.
        **kwargs : tuple of int
            New shapes by name. MXNetError for a change that is not allowed.
        """
        program = self._program
        shapes = {
            name: tuple(shape) for name, shape in kwargs.items() if isinstance(shape, (tuple, list))
        }
        names = {node.name for node in (*program.arguments, *program.auxiliary)}
        for name in shapes:
            if name not in names:
                raise MXNetError(f"reshape: the symbol has no argument {name!r}")
        inference = Inference(entries_of(self._symbol), shapes, {})
        arrays = []
        for nodes, old, gradients in (
            (program.arguments, self.arg_arrays, False),
            (program.arguments, self.grad_arrays, True),
            (program.auxiliary, self.aux_arrays, False),
        ):
            new = []
            for node, array, (shape, _) in zip(nodes, old, inference.of(nodes)):
                if array is None:
                    new.append(None)
                    continue
                if not known(shape):
                    raise MXNetError(
                        f"reshape: the new shape of {node.name} cannot be inferred from the "
                        "given shapes"
                    )
                new.append(
                    self._resized(
                        node.name,
                        array,
                        shape,
                        partial_shaping or node.name in shapes or gradients,
                        allow_up_sizing,
                    )
                )
            arrays.append(new)
        executor = Executor(
            self._symbol,
            self._ctx,
            arrays[0],
            arrays[1],
            self._requests,
            arrays[2],
            self._group2ctx,
            base=self,
        )
        executor.set_monitor_callback(self._monitor, self._monitor_all)
        return executor

    def _resized(self, name, array, shape, may_change, may_grow):
        if array.shape == shape:
            return array
        if not may_change:
            raise MXNetError(
                f"reshape: the shape of unspecified array arg:{name} would change from "
                f"{array.shape} to {shape}. If this is intended, set partial_shaping=True"
            )
        size = int(np.prod(shape))
        if size <= array.size:
            return array.reshape((-1,))[:size].reshape(shape)
        if not may_grow:
            raise MXNetError(
                f"reshape: the new shape {shape} of arg:{name} is larger than the original "
                f"{array.shape}. Set allow_up_sizing=True to allow it"
            )
        return nd.empty(shape, ctx=array.context, dtype=array.dtype)

    def get_optimized_symbol(self) -> Symbol:
        """Returns the bound symbol; rewrites apply to the compiled graph
        (`mpgluon._core.CachedOp.dump`)."""
        return self._symbol

    def debug_str(self) -> str:
        """Describes the symbol, the devices of its nodes, and the memory planned for it."""
        lines = [self._symbol.debug_str()]
        for place, node, sources, device in self._program.steps:
            for at, index in sources:
                if self._program.groups and not node.call.copies and self._home(at) != device:
                    lines.append(
                        f"\tCopy {self._program.order[at].output_name(index)} from "
                        f"{self._home(at)} to {device}"
                    )
            lines.append(f"{node.call.name} {node.name} on {device}")
        total = self._planned()
        lines.append(f"Total {total // (1 << 20)} MB allocated ({total} bytes planned)")
        return "\n".join(lines) + "\n"

    def _home(self, at):
        for place, _, _, device in self._program.steps:
            if place == at:
                return device
        node = self._program.order[at]
        for nodes, arrays in (
            (self._program.arguments, self.arg_arrays),
            (self._program.auxiliary, self.aux_arrays),
        ):
            if node in nodes:
                return arrays[nodes.index(node)].context
        return self._ctx

    def _planned(self):
        """Returns the bytes planned for a forward and the values kept for its backward.

        If the symbol has not run, it is compiled on temporary arrays.
        """
        if not self._call.compiled():
            scratch = [
                nd.zeros(array.shape, ctx=array.context, dtype=array.dtype)
                for array in self._inputs
            ]
            for i in self._wanted:
                scratch[i].attach_grad()
            with (
                autograd.record(train_mode=True)
                if self._wanted
                else autograd.pause(train_mode=False)
            ):
                self._call_with(scratch, object())
            if self._program.bound:
                self._call.unbind()
        entries = self._call.compiled()
        return sum(
            device["planned"]["total"]
            for entry in (entries if self._program.splits else entries[:1])
            for device in entry["devices"].values()
        )


# Functions for modules.


def release(executor: Executor) -> None:
    """Releases the outputs of the last forward, and the values kept for its backward.

    Arrays that the user holds remain valid.
    """
    executor._heads = executor._outputs = executor._watched = None


def changes_to_copy(
    executor: Executor,
    arg_params: dict[str, NDArray],
    aux_params: dict[str, NDArray],
    allow_extra_params: bool,
) -> list[Any]:
    """Returns the changes (`_core.at_once`) that copy values into arguments and states."""
    return executor._copies(arg_params, aux_params, allow_extra_params)

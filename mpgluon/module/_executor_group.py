"""`Module._exec_group`: MXNet's private view of a module's executors.

Programs use it to read, clip and clear gradients in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..context import cpu
from ..io import DataDesc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core import NDArray
    from .._internal.types import Arrays, DataShapes
    from ..context import Context
    from ..executor import Executor
    from ..io import DataBatch
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..symbol import Symbol
    from .module import Module


class GroupState(NamedTuple):
    """The state of a bound module that its `ExecutorGroup` exposes."""

    execs: list[Executor]
    contexts: list[Context]
    workload: Sequence[float]  # relative sizes of the contexts' shares of a batch
    slices: list[slice]  # the rows of a batch that each context computes
    batch_size: int
    param_names: list[str]
    fixed_param_names: list[str]
    state_names: list[str]
    data_shapes: list[DataDesc]
    label_shapes: list[DataDesc] | None
    grad_req: dict[str, str]


class ExecutorGroup:
    """The executors of a bound module, one per context, and their arrays.

    Each parameter and input has a list of arrays, one for each context. They are the module's own
    arrays, so writes to them take effect.

    Parameters
    ----------
    module : Module
        The module, which must be bound.
    state : function
        Returns the module's present `GroupState`, whose fields are attributes of the group.

    Examples
    --------
    >>> x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    >>> module = mx.mod.Module(mx.sym.SoftmaxOutput(x, name="softmax"))
    >>> module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    >>> for arrays in module._exec_group.grad_arrays:
    ...     for array in arrays:
    ...         array[:] = 0
    """

    def __init__(self, module: Module, state: Callable[[], GroupState]) -> None:
        self._module = module
        self._state = state
        self.symbol: Symbol = module.symbol
        self.arg_names = self.symbol.list_arguments()
        self.aux_names = self.symbol.list_auxiliary_states()
        self.output_names = self.symbol.list_outputs()
        self.num_outputs = len(self.output_names)
        self.output_layouts = [
            DataDesc.get_batch_axis(output.attr("__layout__")) for output in self.symbol
        ]

    def __getattr__(self, name: str) -> Any:
        if name in GroupState.__annotations__:
            return getattr(self._state(), name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _of_arguments(self, names):
        return [[one.arg_dict[name] for one in self.execs] for name in names]

    def _of_gradients(self, names):
        return [[one.grad_dict[name] for one in self.execs] for name in names]

    def _of_inputs(self, shapes):
        return [
            [(part, one.arg_dict[desc.name]) for part, one in zip(self.slices, self.execs)]
            for desc in shapes
            if desc.name in self.arg_names
        ]

    @property
    def param_arrays(self) -> list[list[NDArray]]:
        """The parameters, in the order of `param_names`."""
        return self._of_arguments(self.param_names)

    @property
    def grad_arrays(self) -> list[list[NDArray | None]] | None:
        """The parameters' gradients, in the order of `param_names`; None if the module was not
        bound for training."""
        return self._of_gradients(self.param_names) if self.for_training else None

    @property
    def input_grad_arrays(self) -> list[list[NDArray | None]] | None:
        """The gradients of the data; None unless the module was bound with
        ``inputs_need_grad=True``."""
        if not self.inputs_need_grad:
            return None
        return self._of_gradients(name for name in self.data_names if name in self.arg_names)

    @property
    def aux_arrays(self) -> list[list[NDArray]]:
        """The auxiliary states, in the order of `aux_names`."""
        return [[one.aux_dict[name] for one in self.execs] for name in self.aux_names]

    @property
    def state_arrays(self) -> list[list[NDArray]]:
        """The arrays of `state_names`."""
        return self._of_arguments(self.state_names)

    @property
    def data_arrays(self) -> list[list[tuple[slice, NDArray]]]:
        """The data, as (rows of the batch, array)."""
        return self._of_inputs(self.data_shapes)

    @property
    def label_arrays(self) -> list[list[tuple[slice, NDArray]]] | None:
        """The labels, as (rows of the batch, array); None if the module has none."""
        return None if self.label_shapes is None else self._of_inputs(self.label_shapes)

    @property
    def data_names(self) -> list[str]:
        """The names of the data."""
        return [desc.name for desc in self.data_shapes]

    @property
    def label_names(self) -> list[str] | None:
        """The names of the labels; None if the module has none."""
        return None if self.label_shapes is None else [desc.name for desc in self.label_shapes]

    @property
    def for_training(self) -> bool:
        """True if the module was bound for training."""
        return self._module.for_training

    @property
    def inputs_need_grad(self) -> bool:
        """True if gradients of the data are computed."""
        return self._module.inputs_need_grad

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Calls `Module.forward`."""
        self._module.forward(data_batch, is_train)

    def backward(self, out_grads: Arrays | None = None) -> None:
        """Calls `Module.backward`."""
        self._module.backward(out_grads)

    def get_outputs(
        self, merge_multi_context: bool = True, begin: int = 0, end: int | None = None
    ) -> list[Any]:
        """Calls `Module.get_outputs`; `begin` and `end` select outputs."""
        return self._module.get_outputs(merge_multi_context)[begin:end]

    def get_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns `Module.output_shapes`."""
        return self._module.output_shapes

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Calls `Module.get_input_grads`."""
        return self._module.get_input_grads(merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """Calls `Module.get_states`."""
        return self._module.get_states(merge_multi_context)

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        """Calls `Module.set_states`."""
        self._module.set_states(states, value)

    def get_params(self, arg_params: dict[str, Any], aux_params: dict[str, Any]) -> None:
        """Copies the parameters and states, averaged over the contexts, into dicts of arrays."""
        for into, names, arrays in (
            (arg_params, self.param_names, self.param_arrays),
            (aux_params, self.aux_names, self.aux_arrays),
        ):
            for name, (first, *others) in zip(names, arrays):
                moved = [array.as_in_context(first.context) for array in others]
                mean = sum(moved, first) / (len(moved) + 1)
                if name in into:
                    mean.astype(into[name].dtype).copyto(into[name])
                else:
                    into[name] = mean.astype(first.dtype).as_in_context(cpu())

    def set_params(
        self, arg_params: dict[str, Any], aux_params: dict[str, Any], allow_extra: bool = False
    ) -> None:
        """Copies the given parameters and states to all contexts. All others are unchanged."""
        for executor in self.execs:
            executor.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        """Calls `Module.update_metric`."""
        self._module.update_metric(eval_metric, labels, pre_sliced)

    def reshape(self, data_shapes: DataShapes, label_shapes: DataShapes | None = None) -> None:
        """Calls `Module.reshape`."""
        self._module.reshape(data_shapes, label_shapes)

    def install_monitor(self, mon: Monitor) -> None:
        """Calls `Module.install_monitor`."""
        self._module.install_monitor(mon)

"""`Module`: one symbol on one device, data-parallel on several, or spread over devices by
group2ctx."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from .. import _core, kvstore as kvstores, ndarray as nd, optimizer as optimizers
from .._internal.files import open_regular
from .._internal.ranks.store import broadcast_values, sums_over_ranks
from ..base import MXNetError, itemsize
from ..context import Context, cpu, current_context
from ..executor import changes_to_copy, release
from ..initializer import InitDesc, Uniform
from ..io import DataDesc
from ..model import load_checkpoint, save_checkpoint
from ._executor_group import ExecutorGroup, GroupState
from .base_module import BaseModule, check_names, copied, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import Arrays, DataShapes, Devices, Groups, Shape
    from ..executor import Executor
    from ..initializer import Initializer
    from ..io import DataBatch
    from ..kvstore import KVStoreBase
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..optimizer import Optimizer
    from ..symbol import Symbol


__all__ = ["Module"]


def _descs(shapes):
    return [desc if isinstance(desc, DataDesc) else DataDesc(*desc) for desc in shapes or ()]


class Module(BaseModule):
    """A symbol with its parameters, on devices, with an optimizer.

    Parameters
    ----------
    symbol : Symbol
        The network, with its losses.
    data_names, label_names : list of str
        The arguments supplied by batches; the remaining ones are parameters.
    logger : Logger
        Receives the messages.
    context : Context or list of Context, default the current context
        The devices; each computes a part of every batch.
    work_load_list : list of number, optional
        Relative sizes of the parts; equal by default.
    fixed_param_names : list of str, optional
        Parameters that are not trained.
    state_names : list of str, optional
        Arguments that `set_states` sets.
    group2ctxs : dict of str to Context or list of them, or a list of such dicts, optional
        The devices of the groups of ``AttrScope(ctx_group=...)``, for each context.
    compression_params : optional
        Gradient compression parameters; see `set_gradient_compression` of the kvstore.

    Examples
    --------
    >>> x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    >>> module = mx.mod.Module(mx.sym.SoftmaxOutput(x, name="softmax"))
    >>> data = mx.io.NDArrayIter(np.ones((4, 3)), np.zeros(4), batch_size=2)
    >>> module.fit(data, num_epoch=1)
    >>> module.predict(data).shape
    (4, 2)
    """

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Devices | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Groups | Sequence[Groups] | None = None,
        compression_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(logger)
        context = current_context() if context is None else context
        self._context = [context] if isinstance(context, Context) else list(context)
        self._group2ctxs = self._groups(group2ctxs)
        if work_load_list is not None and len(work_load_list) != len(self._context):
            raise ValueError(
                f"work_load_list has {len(work_load_list)} numbers, but there are "
                f"{len(self._context)} contexts"
            )
        self._work_load_list = work_load_list or [1] * len(self._context)
        self._symbol = symbol
        self._data_names = list(data_names)
        self._label_names = list(label_names or ())
        self._state_names = list(state_names or ())
        self._fixed_param_names = list(fixed_param_names or ())
        check_names(symbol, self._data_names, "data", True)
        check_names(symbol, self._label_names, "label", False)
        check_names(symbol, self._state_names, "state", True)
        check_names(symbol, self._fixed_param_names, "fixed_param", True)
        inputs = {*self._data_names, *self._label_names, *self._state_names}
        self._param_names = [name for name in symbol.list_arguments() if name not in inputs]
        self._aux_names = symbol.list_auxiliary_states()
        self._output_names = symbol.list_outputs()
        self._output_axes = [DataDesc.get_batch_axis(out.attr("__layout__")) for out in symbol]
        self._arg_params = self._aux_params = None
        self._params_dirty = False
        # True if the latest update has only changed the first executor's parameters so far.
        self._replicas_behind = False
        self._optimizer = self._updater = self._kvstore = None
        self._compression_params = compression_params
        self._preload_opt_states = None
        self._reset_bind()

    def _groups(self, group2ctxs):
        count = len(self._context)
        if group2ctxs is None:
            return [None] * count
        if isinstance(group2ctxs, dict):
            spread = {
                name: ctx if isinstance(ctx, (list, tuple)) else [ctx] * count
                for name, ctx in group2ctxs.items()
            }
            return [
                {name: ctxs[i if len(ctxs) > 1 else 0] for name, ctxs in spread.items()}
                for i in range(count)
            ]
        if len(group2ctxs) != count:
            raise ValueError(f"group2ctxs has {len(group2ctxs)} dicts for {count} contexts")
        return list(group2ctxs)

    def _reset_bind(self):
        self.binded: bool = False
        self._execs = []
        self._grad_req = None
        # For each context: data or label name -> largest array so far, which all buckets share
        self._buffers = [{} for _ in self._context]
        self._data_shapes = self._label_shapes = None
        self._batch_size = 0

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """Loads the module of a checkpoint; `kwargs` are passed to `Module`."""
        symbol, arguments, states = load_checkpoint(prefix, epoch)
        module = Module(symbol=symbol, **kwargs)
        module._arg_params, module._aux_params = arguments, states
        module.params_initialized = True
        if load_optimizer_states:
            module._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    def save_checkpoint(
        self,
        prefix: str,
        epoch: int,
        save_optimizer_states: bool = False,
        remove_amp_cast: bool = True,
    ) -> None:
        """Writes the symbol and the parameters.

        With `save_optimizer_states` it also writes the optimizer's states (``prefix-0001.states``).
        """
        save_checkpoint(
            prefix, epoch, self._symbol, *self.get_params(), remove_amp_cast=remove_amp_cast
        )
        if save_optimizer_states:
            path = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(path)
            logging.info('Saved optimizer state to "%s"', path)

    # Properties

    @property
    def _exec_group(self):
        return ExecutorGroup(self, self._group_state) if self.binded else None

    def _group_state(self):
        return GroupState(
            execs=self._execs,
            contexts=self._context,
            workload=self._work_load_list,
            slices=[slice(*part) for part in self._parts],
            batch_size=self._batch_size,
            param_names=self._param_names,
            fixed_param_names=self._fixed_param_names,
            state_names=self._state_names,
            data_shapes=self._data_shapes,
            label_shapes=self._label_shapes,
            grad_req=self._grad_requests(self._grad_req if self.for_training else "null"),
        )

    @property
    def _total_exec_bytes(self):
        """Returns the bytes of the bound arrays, including those shared with other modules."""
        arrays = [
            array
            for one in self._execs
            for array in (*one.arg_arrays, *one.grad_arrays, *one.aux_arrays)
            if array is not None
        ]
        return sum(array.size * itemsize(array.dtype) for array in arrays)

    @property
    def data_names(self) -> Sequence[str]:
        return self._data_names

    @property
    def label_names(self) -> Sequence[str]:
        """The names of the labels."""
        return self._label_names

    @property
    def output_names(self) -> Sequence[str]:
        return self._output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        self._require()
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        self._require()
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of the outputs for the whole batch."""
        self._require()
        shapes = {
            desc.name: desc.shape for desc in (*self._data_shapes, *(self._label_shapes or ()))
        }
        shapes.update(
            {
                name: self._execs[0].arg_dict[name].shape
                for name in (*self._param_names, *self._state_names)
            }
        )
        inputs = set(self._symbol.list_inputs())  # some labels may only be used by the metric
        return list(
            zip(
                self._output_names,
                self._symbol.infer_shape(
                    **{name: shape for name, shape in shapes.items() if name in inputs}
                )[1],
            )
        )

    # Binding

    def bind(
        self,
        data_shapes: DataShapes,
        label_shapes: DataShapes | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: BaseModule | None = None,
        grad_req: str | Sequence[str] | dict[str, str] = "write",
    ) -> None:
        """Creates executors for batches of these shapes.

        Parameters
        ----------
        data_shapes, label_shapes : list of DataDesc or (str, tuple)
            Name and shape of each input, as in `DataIter.provide_data`.
        for_training : bool, default True
            True to compute gradients.
        inputs_need_grad : bool, default False
            True to compute the gradients of the data as well.
        force_rebind : bool, default False
            True to rebind a bound module.
        shared_module : Module, optional
            A module to share parameters and memory with, as buckets do.
        grad_req : str, list or dict of str
            The handling of gradients of parameters and, with `inputs_need_grad`, of data: 'write',
            'add' or 'null'. A list has one for each argument of the symbol; names missing from a
            dict get 'write'.
        """
        if force_rebind:
            self._reset_bind()
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if inputs_need_grad and not for_training:
            raise AssertionError("inputs_need_grad needs for_training")
        if shared_module is not None:
            self._buffers = shared_module._buffers
        self.for_training: bool = for_training
        self.inputs_need_grad: bool = inputs_need_grad
        self._grad_req = grad_req
        self._set_shapes(data_shapes, label_shapes)
        arguments = self._symbol.list_arguments()
        requests = self._grad_requests(grad_req) if for_training else "null"
        shared = shared_module._execs if shared_module is not None else [None] * len(self._context)
        if shared_module is not None:
            strange = [name for name in self._param_names if name not in shared_module._param_names]
            if strange:
                raise MXNetError(
                    "bind: the shared module does not have the parameters "
                    f"{', '.join(strange)}; bind the module with all parameters first"
                )
        types = {
            desc.name: desc.dtype
            for desc in (*self._data_shapes, *(self._label_shapes or ()))
            if desc.name in arguments
        }
        self._execs = []
        for i, ctx in enumerate(self._context):
            executor = self._symbol.simple_bind(
                ctx,
                grad_req=requests,
                type_dict=types,
                group2ctx=self._group2ctxs[i],
                shared_arg_names=self._param_names,
                shared_exec=shared[i],
                shared_buffer=self._buffers[i],
                **self._part_shapes(i),
            )
            self._execs.append(executor)
        self.binded = True
        if shared_module is not None and shared_module.params_initialized:
            self._arg_params, self._aux_params = (
                shared_module._arg_params,
                shared_module._aux_params,
            )
            self.params_initialized = True
        elif self.params_initialized:
            self._spread(self._arg_params, self._aux_params)
        if shared_module is not None and shared_module.optimizer_initialized:
            self.borrow_optimizer(shared_module)

    def _grad_requests(self, grad_req):
        """Returns a dict from the name of each argument to its 'write', 'add' or 'null'."""
        arguments = self._symbol.list_arguments()
        if isinstance(grad_req, str):
            grad_req = dict.fromkeys(arguments, grad_req)
        elif isinstance(grad_req, (list, tuple)):
            grad_req = dict(zip(arguments, grad_req))
        never = {*self._label_names, *self._state_names, *self._fixed_param_names}
        if not self.inputs_need_grad:
            never.update(self._data_names)
        return {
            name: "null" if name in never else grad_req.get(name, "write") for name in arguments
        }

    def _set_shapes(self, data_shapes, label_shapes):
        self._data_shapes = _descs(data_shapes)
        self._label_shapes = _descs(label_shapes) or None
        names = [desc.name for desc in self._data_shapes]
        if sorted(names) != sorted(self._data_names):
            raise ValueError(
                f"Data provided by data_shapes don't match names specified by data_names ({names} "
                f"vs. {self._data_names})"
            )
        batch = self._data_shapes[0].shape[
            max(DataDesc.get_batch_axis(self._data_shapes[0].layout), 0)
        ]
        total, ends = sum(self._work_load_list), [0]
        for load in self._work_load_list:
            ends.append(ends[-1] + round(batch * load / total))
        ends[-1] = batch
        self._parts = list(zip(ends, ends[1:]))
        if any(begin >= end for begin, end in self._parts):
            raise ValueError("Too many slices. Some splits are empty.")
        self._batch_size = batch

    def _part_shapes(self, i):
        begin, end = self._parts[i]
        known = set(self._symbol.list_arguments())
        shapes = {}
        for desc in (*self._data_shapes, *(self._label_shapes or ())):
            if desc.name in known:
                shape, axis = list(desc.shape), DataDesc.get_batch_axis(desc.layout)
                if axis >= 0 and axis < len(shape):
                    shape[axis] = end - begin
                shapes[desc.name] = tuple(shape)
        return shapes

    def reshape(self, data_shapes: DataShapes, label_shapes: DataShapes | None = None) -> None:
        """Switches to batches of other shapes."""
        self._require()
        self._set_shapes(data_shapes, label_shapes)
        self._execs = [
            one.reshape(allow_up_sizing=True, **self._part_shapes(i))
            for i, one in enumerate(self._execs)
        ]

    # Parameters

    def init_params(
        self,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Sets the parameters from the dicts. The initializer sets missing parameters.

        The change is atomic: if one value is invalid, no parameter is set. Raises RuntimeError if a
        parameter is missing without `allow_missing`, and MXNetError if a shape differs. Other
        dtypes are cast. Names that the symbol does not have are ignored regardless of
        `allow_extra`, as in MXNet.
        """
        if self.params_initialized and not force_init:
            warnings.warn(
                "Parameters already initialized and force_init=False. init_params call ignored.",
                stacklevel=2,
            )
            return
        self._require()
        if arg_params is None and self._arg_params is not None and not force_init:
            arg_params, aux_params = self._arg_params, self._aux_params
        attributes = self._symbol.attr_dict()
        found = []
        for names, there, given in (
            (self._param_names, self._execs[0].arg_dict, arg_params),
            (self._aux_names, self._execs[0].aux_dict, aux_params),
        ):
            values = {}
            for name in names:
                array = nd.zeros(there[name].shape, ctx=cpu(), dtype=there[name].dtype)
                if given is not None and name in given:
                    if given[name].shape != array.shape:
                        raise MXNetError(
                            f"init_params: {name} has shape {given[name].shape}, expected "
                            f"{array.shape}"
                        )
                    given[name].copyto(array)
                elif given is not None and not allow_missing:
                    raise RuntimeError(f"{name} is not presented")
                elif initializer is not None:
                    initializer(InitDesc(name, attributes.get(name)), array)
                elif self.params_initialized:
                    there[name].copyto(array)
                values[name] = array.tostype(there[name].stype)
            found.append(values)
        self._spread(*found)

    def set_params(
        self,
        arg_params: dict[str, NDArray] | None,
        aux_params: dict[str, NDArray] | None,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Sets the parameters from dicts of name to NDArray, atomically.

        With `allow_missing`, missing parameters keep their values, and extra ones raise ValueError
        unless `allow_extra`. Without it, missing ones raise RuntimeError, and extra ones are
        ignored, as in MXNet. Raises MXNetError for arrays of another shape; other dtypes are cast.
        """
        if not allow_missing:
            self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)
            return
        if self.params_initialized and not force_init:
            warnings.warn(
                "Parameters already initialized and force_init=False. set_params call ignored.",
                stacklevel=2,
            )
            return
        self._require()
        changes = [
            change
            for executor in self._execs
            for change in changes_to_copy(executor, arg_params, aux_params, allow_extra)
        ]
        _core.at_once(
            *changes, (vars(self).update, {"params_initialized": True, "_params_dirty": True})
        )

    def _spread(self, arg_params, aux_params):
        """Sets the parameters in all executors."""
        changes = [
            change
            for executor in self._execs
            for change in changes_to_copy(executor, arg_params, aux_params, True)
        ]
        values = {
            "_arg_params": arg_params,
            "_aux_params": aux_params,
            "params_initialized": True,
            "_params_dirty": False,
        }
        _core.at_once(*changes, (vars(self).update, values))

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Returns the dicts of parameters and of auxiliary states, averaged over the contexts."""
        self._require(params=True)
        if self._params_dirty:
            first = self._execs[0]
            arguments = copied({name: first.arg_dict[name] for name in self._param_names})
            averaged = {}
            for name in self._aux_names:
                parts = [one.aux_dict[name].as_in_context(cpu()) for one in self._execs]
                averaged[name] = (sum(parts[1:], parts[0]) / len(parts)).astype(parts[0].dtype)
            vars(self).update(_arg_params=arguments, _aux_params=averaged, _params_dirty=False)
        return self._arg_params, self._aux_params

    # Optimizer

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Installs an optimizer, given as an Optimizer or as a name with parameters.

        By default gradients are divided by the batch size. kvstore: 'local', 'device' or None; with
        several contexts the first one updates the parameters and copies them to the rest.
        """
        self._require(params=True)
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        store = kvstores.create(kvstore) if isinstance(kvstore, str) else kvstore
        if isinstance(store, kvstores.KVStore):
            store.set_gradient_compression(self._compression_params)
        elif store is not None and not isinstance(store, kvstores.KVStoreBase):
            raise TypeError(
                "init_optimizer: kvstore must be the name of a store, a store or None, not "
                f"{type(kvstore).__name__}"
            )
        names = dict(enumerate(self._param_names))
        of_ranks = kvstores.is_of_ranks(store)
        served = isinstance(store, kvstores.KVStoreBase) and store.needs_optimizer
        weights = [self._execs[0].arg_dict[name] for name in self._param_names]
        if of_ranks:
            broadcast_values(0, weights)
        elif served:
            store.broadcast(self._param_names, weights, weights)
        if of_ranks or served:
            vars(self).update(_params_dirty=True, _replicas_behind=len(self._execs) > 1)
            self._replicate()
        if isinstance(optimizer, str):
            batch = self._batch_size * (store.num_workers if of_ranks else 1)
            params = {"rescale_grad": 1.0 / batch, **dict(optimizer_params)}
            optimizer = optimizers.create(
                optimizer, sym=self._symbol, param_idx2name=names, **params
            )
        elif not isinstance(optimizer, optimizers.Optimizer):
            raise TypeError(f"optimizer must be a name or Optimizer, not {type(optimizer)}")
        elif not optimizer.idx2name:
            optimizer.idx2name = names
        updater = store.updater_by(optimizer) if served else optimizers.get_updater(optimizer)
        # `update` replaces push and pull with one call for all parameters of a device. The store
        # only gives the user access to the values.
        apart = len(self._context) > 1 or of_ranks or served
        store = store if apart or store is kvstore else None
        if isinstance(store, kvstores.KVStore):
            kvstores.set_updater(store, updater)
        vars(self).update(
            _optimizer=optimizer, _updater=updater, _kvstore=store, optimizer_initialized=True
        )
        if self._preload_opt_states is not None:
            self.load_optimizer_states(self._preload_opt_states)
            self._preload_opt_states = None

    def borrow_optimizer(self, shared_module: Module) -> None:
        """Uses the optimizer of another module."""
        require(shared_module, params=True, optimizer=True)
        vars(self).update(
            _optimizer=shared_module._optimizer,
            _updater=shared_module._updater,
            _kvstore=shared_module._kvstore,
            optimizer_initialized=True,
        )

    def save_optimizer_states(self, fname: str) -> None:
        """Writes the optimizer's states to a file."""
        self._require(params=True, optimizer=True)
        _core.write_file(fname, self._updater.get_states())

    def load_optimizer_states(self, fname: str) -> None:
        """Reads a file written by `save_optimizer_states`, here or in MXNet, without running code.

        Raises MXNetError if the file has no states, or states of unknown parameters.
        """
        self._require(params=True, optimizer=True)
        updater = optimizers.get_updater(self._updater.optimizer)
        with open_regular(fname) as file:
            try:
                updater.set_states(file.read())
            except MemoryError:
                raise
            except MXNetError as error:
                raise MXNetError(f"{fname}: {error}") from None
        # MXNet's keys are parameter indices if no kvstore updates them.
        names = dict(enumerate(self._param_names))
        states = {names.get(key, key): state for key, state in updater.states.items()}
        unknown = [str(key) for key in states if key not in self._param_names]
        if unknown:
            raise MXNetError(
                f"{fname} holds states of {', '.join(unknown[:5])}, but the module has the "
                f"parameters {', '.join(self._param_names[:5])}"
            )
        vars(self._updater).update(
            optimizer=updater.optimizer, states=states, states_synced=dict.fromkeys(states, False)
        )

    # Computing

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs for a batch; a batch of another shape reshapes the module."""
        self._require(params=True)
        self._replicate()
        is_train = self.for_training if is_train is None else is_train
        given = list(zip(self._data_shapes, data_batch.data))
        given_labels = getattr(data_batch, "label", None)
        if given_labels and self._label_shapes:
            given += zip(self._label_shapes, given_labels)
        if any(tuple(array.shape) != desc.shape for desc, array in given):
            data = [
                DataDesc(desc.name, array.shape, desc.dtype, desc.layout)
                for desc, array in zip(self._data_shapes, data_batch.data)
            ]
            labels, size = None, data[0].shape[0]
            if self._label_shapes:
                labels = []
                arrays = given_labels or [None] * len(self._label_shapes)
                for desc, array in zip(self._label_shapes, arrays):
                    first = size if desc.shape[0] == self._batch_size else desc.shape[0]
                    shape = (first, *desc.shape[1:]) if array is None else array.shape
                    labels.append(DataDesc(desc.name, shape, desc.dtype, desc.layout))
            self.reshape(data, labels)
        for (begin, end), executor in zip(self._parts, self._execs):
            arguments = executor.arg_dict
            for desc, array in given:
                if desc.name not in arguments:
                    continue
                axis = DataDesc.get_batch_axis(desc.layout)
                array = array if isinstance(array, nd.NDArray) else nd.array(array)
                if len(self._execs) > 1 and axis >= 0:
                    array = nd.slice_axis(array, axis=axis, begin=begin, end=end)
                target = arguments[desc.name]
                array = array if array.dtype == target.dtype else array.astype(target.dtype)
                array.copyto(target)
            executor.forward(is_train=is_train)

    def backward(self, out_grads: Arrays | None = None) -> None:
        """Computes the gradients. `out_grads` has the gradients of the outputs that are not
        losses."""
        self._require(params=True, training=True)
        grads = [out_grads] if isinstance(out_grads, nd.NDArray) else out_grads
        for (begin, end), executor in zip(self._parts, self._execs):
            part = None
            if grads is not None:
                part = list(grads)
                if len(self._execs) > 1:
                    part = [
                        grad if axis < 0 else nd.slice_axis(grad, axis=axis, begin=begin, end=end)
                        for grad, axis in zip(grads, self._output_axes)
                    ]
            executor.backward(part)

    def update(self) -> None:
        """Updates the parameters with their gradients."""
        self._require(params=True, optimizer=True)
        self._params_dirty = True
        arguments = [one.arg_dict for one in self._execs]
        gradients = [one.grad_dict for one in self._execs]
        groups = {}  # device -> the parameters on it, which are updated in place
        for name in self._param_names:
            grad = gradients[0][name]
            if grad is None:
                continue
            for other in gradients[1:]:
                grad = grad + other[name].as_in_context(grad.context)
            groups.setdefault(grad.context, []).append((name, grad, arguments[0][name]))
        groups = sums_over_ranks(self._kvstore, groups)
        self._replicas_behind = len(arguments) > 1
        for group in groups.values():
            self._updater(*[list(part) for part in zip(*group)])
        self._replicate()

    def _replicate(self):
        """Copies the first executor's parameters to the other executors after an update.

        If an interrupt prevented that, the next call repeats it.
        """
        if not self._replicas_behind:
            return
        first, *others = [one.arg_dict for one in self._execs]
        copies = [
            (first[name].copyto, other[name]) for name in self._param_names for other in others
        ]
        _core.at_once(*copies, (vars(self), "_replicas_behind", False))

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        """Updates a metric with the outputs of the last forward."""
        if pre_sliced:
            for parts, executor in zip(labels, self._execs):
                eval_metric.update_dict(dict(zip(self._label_names, parts)), executor.output_dict)
            return
        names = [desc.name for desc in self._label_shapes or ()] or self._label_names
        eval_metric.update_dict(
            dict(zip(names, labels or ())), dict(zip(self._output_names, self.get_outputs()))
        )

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the outputs of the last forward, joined over contexts, or a list per output."""
        self._require(params=True)
        return self._merged(
            [one.outputs for one in self._execs], merge_multi_context, self._output_axes
        )

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the gradients of the data in the form of `get_outputs`.

        They need ``bind(inputs_need_grad=True)``, and are None if `grad_req` is 'null'.
        """
        self._require(params=True)
        if not self.inputs_need_grad:
            raise AssertionError(
                "bind the module with inputs_need_grad=True for the gradients of its inputs"
            )
        axes = {desc.name: DataDesc.get_batch_axis(desc.layout) for desc in self._data_shapes}
        grads = [[one.grad_dict[name] for name in self._data_names] for one in self._execs]
        return self._merged(grads, merge_multi_context, [axes[name] for name in self._data_names])

    def _merged(self, parts, merge, axes):
        """Joins the arrays of the contexts along their batch axes.

        For axis -1 it returns the first context's array.
        """
        if not merge:
            return [list(arrays) for arrays in zip(*parts)]
        if len(parts) == 1:
            return list(parts[0])
        joined = []
        for arrays, axis in zip(zip(*parts), axes):
            here = [a.as_in_context(arrays[0].context) for a in arrays if a is not None]
            joined.append(nd.concat(*here, dim=axis) if here and axis >= 0 else arrays[0])
        return joined

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the arrays of `state_names`."""
        self._require(params=True)
        return self._merged(
            [[one.arg_dict[name] for name in self._state_names] for one in self._execs],
            merge_multi_context,
            [0] * len(self._state_names),
        )

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        """Sets the arrays of `state_names` to a number, or to lists of one array per context."""
        self._require(params=True)
        if (states is None) == (value is None):
            raise AssertionError("set_states: exactly one of states and value must be given")
        for i, executor in enumerate(self._execs):
            for k, name in enumerate(self._state_names):
                executor.arg_dict[name][:] = value if states is None else states[k][i]

    def install_monitor(self, mon: Monitor) -> None:
        """Installs a Monitor on the executors."""
        self._require()
        for executor in self._execs:
            mon.install(executor)


def executors(module: Module) -> list[Executor]:
    """Returns the executors of a bound module, one for each context."""
    return module._execs


def give_back(module: Module) -> None:
    """Releases the outputs of the last forward, and the values kept for its backward."""
    for executor in module._execs:
        release(executor)


def share_params(module: Module, owner: Module) -> None:
    """Makes `module` use the parameter dicts of `owner`."""
    module._arg_params, module._aux_params = owner._arg_params, owner._aux_params
    module.params_initialized = True


def note_updates(owner: Module, modules: Iterable[Module]) -> None:
    """Marks the dicts of `owner` as outdated if one of the modules has updated the arrays."""
    updated = any(module._params_dirty for module in (owner, *modules))
    for module in modules:
        module._params_dirty = False
    owner._params_dirty = updated

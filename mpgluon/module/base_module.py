"""`BaseModule`: training, scoring and prediction, common to all modules."""

from __future__ import annotations

import logging
import os
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np

from .. import metric as metrics, ndarray as nd
from ..context import cpu
from ..initializer import Uniform
from ..model import BatchEndParam, split_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import ArrayLike, Arrays, Callbacks, DataShapes, Metric, Shape
    from ..initializer import Initializer
    from ..io import DataBatch, DataDesc, DataIter
    from ..kvstore import KVStoreBase
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..optimizer import Optimizer
    from ..symbol import Symbol


__all__ = ["BaseModule"]


def _call_all(callbacks, *args):
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        callback(*args)


class BaseModule:
    """The base of modules.

    A subclass defines `bind`, `init_params`, `init_optimizer`, `forward`, `backward`, `update`,
    `update_metric`, `get_outputs`, `get_params` and the descriptions of its data.
    """

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded: bool = False
        self.for_training: bool = False
        self.inputs_need_grad: bool = False
        self.params_initialized: bool = False
        self.optimizer_initialized: bool = False
        self._symbol = None

    def __repr__(self) -> str:
        name = getattr(self._symbol, "name", None)
        shapes = "not bound"
        if self.binded:
            described = [*self.data_shapes, *(self.label_shapes or ())]
            shapes = ", ".join(f"{desc[0]} {tuple(desc[1])}" for desc in described)
            shapes += "" if self.params_initialized else ", no parameters"
            shapes += ", with an optimizer" if self.optimizer_initialized else ""
        return f"{type(self).__name__}({f'{name}: ' if name else ''}{shapes})"

    @property
    def symbol(self) -> Symbol | None:
        """The symbol of the module."""
        return self._symbol

    def _require(self, *, params=False, optimizer=False, training=False):
        for needed, there, what in (
            (True, self.binded, "bind"),
            (params, self.params_initialized, "init_params"),
            (optimizer, self.optimizer_initialized, "init_optimizer"),
            (training, self.for_training, "bind(for_training=True)"),
        ):
            if needed and not there:
                raise AssertionError(f"call {what} before this")

    # --- Defined by subclasses

    def _undefined(self, name):
        raise NotImplementedError(f"{type(self).__name__} does not define {name}")

    @property
    def data_names(self) -> Sequence[str]:
        """The names of the data."""
        self._undefined("data_names")

    @property
    def output_names(self) -> Sequence[str]:
        """The names of the outputs."""
        self._undefined("output_names")

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The bound data descriptions, as DataDesc."""
        self._undefined("data_shapes")

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        """The bound label descriptions, as DataDesc."""
        self._undefined("label_shapes")

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of the outputs."""
        self._undefined("output_shapes")

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
        """Creates the executors for these shapes of data and labels: DataDesc, or (name, shape)."""
        self._undefined("bind")

    def init_params(
        self,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Sets the parameters from the dicts. The initializer sets missing parameters."""
        self._undefined("init_params")

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Creates the optimizer."""
        self._undefined("init_optimizer")

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs of a batch; the default of `is_train` is the mode of `bind`."""
        self._undefined("forward")

    def backward(self, out_grads: Arrays | None = None) -> None:
        """Computes the gradients. `out_grads` has the gradients of the outputs that are not
        losses."""
        self._undefined("backward")

    def update(self) -> None:
        """Updates the parameters with the gradients of the last `backward`."""
        self._undefined("update")

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        """Updates a metric with the labels and the outputs of the last `forward`."""
        self._undefined("update_metric")

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the outputs of the last `forward`; unmerged, each is a list per device."""
        self._undefined("get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the gradients of the data, like `get_outputs`; needs `inputs_need_grad`."""
        self._undefined("get_input_grads")

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Returns (arguments, auxiliary states): dicts of name to NDArray on the host."""
        self._undefined("get_params")

    def install_monitor(self, mon: Monitor) -> None:
        """Installs a `Monitor` on the executors."""
        self._undefined("install_monitor")

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the list of states carried from batch to batch; empty by default."""
        return []

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        """Sets the states to arrays, or to one number."""
        if states or value:
            raise ValueError(f"{type(self).__name__} has no states")

    # --- Common to all modules

    def forward_backward(self, data_batch: DataBatch) -> None:
        """Calls `forward` in training mode, then `backward`."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def prepare(
        self, data_batch: DataBatch, sparse_row_id_fn: Callable[..., Any] | None = None
    ) -> None:
        """Prepares for a batch before its `forward`; does nothing in most modules."""

    def set_params(
        self,
        arg_params: dict[str, NDArray] | None,
        aux_params: dict[str, NDArray] | None,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Sets the parameters from dicts of name to NDArray."""
        self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)

    def save_params(self, fname: str) -> None:
        """Writes the parameters to a ``.params`` file."""
        arguments, states = self.get_params()
        nd.save(
            fname,
            {
                **{f"arg:{name}": array for name, array in arguments.items()},
                **{f"aux:{name}": array for name, array in states.items()},
            },
        )

    def load_params(self, fname: str) -> None:
        """Reads a file written by `save_params`; raises ValueError for a file of another kind."""
        try:
            self.set_params(*split_params(nd.load(fname), fname, True))
        except RuntimeError as error:
            if os.fspath(fname) in str(error):
                raise
            raise type(error)(f"{os.fspath(fname)}: {error}") from None

    def _begin_epoch(self, epoch, train_data):
        """Runs before the batches of each epoch in `fit`; does nothing by default."""

    def _batches(self, eval_data, num_batch, reset):
        self._require(params=True)
        if reset:
            eval_data.reset()
        for number, batch in enumerate(eval_data):
            if num_batch is not None and number == num_batch:
                return
            yield number, batch

    def score(
        self,
        eval_data: DataIter,
        eval_metric: Metric,
        num_batch: int | None = None,
        batch_end_callback: Callbacks | None = None,
        score_end_callback: Callbacks | None = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Callable[..., Any] | None = None,
    ) -> list[tuple[str, float]]:
        """Evaluates a metric over the batches of an iterator; returns a list of (name, value)."""
        eval_metric = (
            eval_metric
            if isinstance(eval_metric, metrics.EvalMetric)
            else metrics.create(eval_metric)
        )
        eval_metric.reset()
        number = -1
        for number, batch in self._batches(eval_data, num_batch, reset):
            self.prepare(batch)
            self.forward(batch, is_train=False)
            self.update_metric(eval_metric, batch.label)
            if batch_end_callback is not None:
                _call_all(batch_end_callback, BatchEndParam(epoch, number, eval_metric, locals()))
        if score_end_callback is not None:
            _call_all(score_end_callback, BatchEndParam(epoch, number + 1, eval_metric, locals()))
        return eval_metric.get_name_value()

    def iter_predict(
        self,
        eval_data: DataIter,
        num_batch: int | None = None,
        reset: bool = True,
        sparse_row_id_fn: Callable[..., Any] | None = None,
    ) -> Iterator[tuple[list[NDArray], int, DataBatch]]:
        """Yields ``(outputs, number, batch)`` for every batch, with padding removed."""
        for number, batch in self._batches(eval_data, num_batch, reset):
            self.prepare(batch)
            self.forward(batch, is_train=False)
            yield (
                [out[: out.shape[0] - (batch.pad or 0)] for out in self.get_outputs()],
                number,
                batch,
            )

    def predict(
        self,
        eval_data: DataIter | ArrayLike,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Callable[..., Any] | None = None,
    ) -> NDArray | Any:
        """Computes the outputs for all batches of an iterator, or for an array.

        Returns
        -------
        NDArray, or a list of them for several outputs or with `always_output_list`; without
        `merge_batches` a list of lists.
        """
        if isinstance(eval_data, (nd.NDArray, np.ndarray)):
            from ..io import DataBatch

            data = eval_data if isinstance(eval_data, nd.NDArray) else nd.array(eval_data)
            self.forward(DataBatch([data]))
            return self.get_outputs()[0]
        collected = [
            [out.copy() for out in outputs]
            for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset)
        ]
        if not collected or not merge_batches:
            return collected
        if len({len(outputs) for outputs in collected}) > 1:
            raise AssertionError("Cannot merge batches: they have different numbers of outputs")
        merged = [
            nd.concat(*outputs, dim=0) if len(outputs) > 1 else outputs[0]
            for outputs in zip(*collected)
        ]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def fit(
        self,
        train_data: DataIter,
        eval_data: DataIter | None = None,
        eval_metric: Metric = "acc",
        epoch_end_callback: Callbacks | None = None,
        batch_end_callback: Callbacks | None = None,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        eval_end_callback: Callbacks | None = None,
        eval_batch_end_callback: Callbacks | None = None,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Metric | None = None,
        monitor: Monitor | None = None,
        sparse_row_id_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Trains on the batches of `train_data` from epoch `begin_epoch` up to `num_epoch`.

        It first binds and initializes the module.

        Parameters
        ----------
        train_data, eval_data : DataIter
            Data for training; the second is evaluated after every epoch.
        eval_metric, validation_metric : EvalMetric or str
            Metrics of training data, and of `eval_data` (by default the same).
        epoch_end_callback : function or list of functions (epoch, symbol, arg_params, aux_params)
            Called with epoch, symbol and parameters after each epoch.
        batch_end_callback, eval_end_callback, eval_batch_end_callback : function or list
            Called with a `BatchEndParam` after each batch, after each evaluation, and after each
            batch of an evaluation.
        kvstore : str, default 'local'
            As in `gluon.Trainer`.
        optimizer : str or Optimizer, default 'sgd'
            The optimizer, or its name.
        optimizer_params : dict, default (('learning_rate', 0.01),)
            Options of the optimizer.
        initializer : Initializer, default Uniform(0.01)
            Initializes the parameters without a given value.
        arg_params : dict of str to NDArray, optional
            Initial values of parameters by name.
        aux_params : dict of str to NDArray, optional
            Initial values of auxiliary states by name.
        allow_missing : bool, default False
            True if `initializer` sets the parameters that `arg_params` omits.
        force_rebind : bool, default False
            True to rebind a bound module.
        force_init : bool, default False
            True to reinitialize.
        begin_epoch : int, default 0
            The number of the first epoch.
        num_epoch : int, optional
            The epoch before which training ends.
        monitor : Monitor, optional
            Monitors the executors while training.
        sparse_row_id_fn : callable, optional
            Accepted for compatibility with MXNet; ignored.
        """
        if num_epoch is None:
            raise AssertionError("please specify number of epochs")
        self.bind(
            train_data.provide_data,
            train_data.provide_label,
            for_training=True,
            force_rebind=force_rebind,
        )
        if monitor is not None:
            self.install_monitor(monitor)
        self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        eval_metric = (
            eval_metric
            if isinstance(eval_metric, metrics.EvalMetric)
            else metrics.create(eval_metric)
        )
        validation_metric = eval_metric if validation_metric is None else validation_metric
        for epoch in range(begin_epoch, num_epoch):
            start = time.time()
            eval_metric.reset()
            self._begin_epoch(epoch, train_data)
            values = []
            for number, batch in enumerate(train_data):
                if monitor is not None:
                    monitor.tic()
                self.prepare(batch)
                self.forward_backward(batch)
                self.update()
                self.update_metric(eval_metric, batch.label)
                if monitor is not None:
                    monitor.toc_print()
                # Report the metric over the whole epoch, even if callbacks reset the local metric.
                values = eval_metric.get_global_name_value()
                if batch_end_callback is not None:
                    _call_all(
                        batch_end_callback, BatchEndParam(epoch, number, eval_metric, locals())
                    )
            for name, value in values:
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - start)
            if epoch_end_callback is not None:
                _call_all(epoch_end_callback, epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                scores = self.score(
                    eval_data,
                    validation_metric,
                    score_end_callback=eval_end_callback,
                    batch_end_callback=eval_batch_end_callback,
                    epoch=epoch,
                )
                for name, value in scores:
                    self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
            train_data.reset()


def copied(arrays: dict[str, NDArray]) -> dict[str, NDArray]:
    """Copies a dict's arrays to the first CPU device."""
    return {name: array.copyto(cpu()) for name, array in arrays.items()}


def check_names(symbol: Symbol, names: list[str], what: str, must: bool) -> None:
    """Checks that `names` are arguments of the symbol; raises ValueError if `must`, else warns."""
    known = symbol.list_arguments()
    for name in names:
        if name in known:
            continue
        guesses = [
            one for one in known if not one.endswith(("_weight", "_bias", "_gamma", "_beta"))
        ]
        text = (
            f"the module was created with {what}_names={list(names)}, but {name!r} is not an "
            f"argument of its symbol; did you mean one of {guesses}?"
        )
        if must:
            raise ValueError(text)
        warnings.warn(text, stacklevel=4)


def require(module: BaseModule, *, params: bool = False, optimizer: bool = False) -> None:
    """Raises AssertionError unless a module is bound and has the required state."""
    module._require(params=params, optimizer=optimizer)

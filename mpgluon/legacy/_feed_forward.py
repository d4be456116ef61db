"""`mx.model.FeedForward`, MXNet's training loop before modules."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgluon import metric as metrics, ndarray as nd, symbol as sym
from mpgluon.base import MXNetAssertionError, MXNetError
from mpgluon.callback import LogValidationMetricsCallback
from mpgluon.context import current_context
from mpgluon.initializer import Uniform
from mpgluon.model import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpgluon._core import Context, NDArray
    from mpgluon._internal.types import Callbacks, Metric
    from mpgluon.initializer import Initializer
    from mpgluon.io import DataIter
    from mpgluon.kvstore import KVStoreBase
    from mpgluon.module import BaseModule
    from mpgluon.monitor import Monitor
    from mpgluon.optimizer import Optimizer
    from mpgluon.symbol import Symbol

__all__ = ["FeedForward"]


class FeedForward:
    """A symbol trained on iterators or NumPy arrays; MXNet's interface before `mx.mod.Module`.

    It uses `mx.mod.Module` internally.

    Parameters
    ----------
    symbol : Symbol, or function from a bucket key to a Symbol
        The network, with its losses.
    ctx : Context or list of Context, default the current context
        The devices. Each computes a part of every batch; the first makes the predictions.
    num_epoch : int, optional
        The epoch before which training ends.
    epoch_size : int, optional
        The number of batches in an epoch; by default all batches of the iterator.
    optimizer : str or Optimizer, default 'sgd'
        The optimizer, or its name.
    initializer : Initializer, default Uniform(0.01)
        Initializes the parameters without a given value.
    numpy_batch_size : int, default 128
        Rows in a batch if the data are arrays.
    arg_params, aux_params : dict of str to NDArray, optional
        Initial values of parameters and of auxiliary states by name.
    allow_extra_params : bool, default False
        True if `arg_params` and `aux_params` may have arrays that the symbol does not have.
    begin_epoch : int, default 0
        The number of the first epoch.
    **kwargs
        Options of the optimizer.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", DeprecationWarning)
    >>> x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    >>> model = mx.model.FeedForward(mx.sym.SoftmaxOutput(x, name="softmax"), num_epoch=1)
    >>> model.fit(np.ones((4, 3)), np.zeros(4))
    >>> model.predict(np.ones((4, 3))).shape
    (4, 2)
    """

    __module__ = "mpgluon.model"  # its public name, also in pickles

    def __init__(
        self,
        symbol: Symbol | Callable[[Any], Symbol],
        ctx: Context | Sequence[Context] | None = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: str | Optimizer = "sgd",
        initializer: Initializer = Uniform(0.01),
        numpy_batch_size: int = 128,
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:
        warnings.warn(
            "mx.model.FeedForward is deprecated; use mx.mod.Module",
            DeprecationWarning,
            stacklevel=2,
        )
        self.symbol: Symbol | None = symbol if isinstance(symbol, sym.Symbol) else None
        self.sym_gen: Callable[[Any], Symbol] | None = None
        if self.symbol is None:
            if not callable(symbol):
                raise MXNetAssertionError(
                    "symbol must be a Symbol, or a function from a bucket key to one, not "
                    f"{type(symbol).__name__}"
                )
            self.sym_gen = symbol
        self.ctx: list[Context] = (
            [current_context()]
            if ctx is None
            else list(ctx)
            if isinstance(ctx, (list, tuple))
            else [ctx]
        )
        self.num_epoch = num_epoch
        self.epoch_size = epoch_size
        self.optimizer = optimizer
        self.initializer = initializer
        self.numpy_batch_size = numpy_batch_size
        self.arg_params = arg_params
        self.aux_params = aux_params
        self.allow_extra_params = allow_extra_params
        self.begin_epoch = begin_epoch
        self.kwargs: dict[str, Any] = dict(kwargs)

    def __repr__(self) -> str:
        name = self.symbol.name if self.symbol is not None else "by bucket"
        return (
            f"FeedForward({name}, {self.optimizer}, epochs {self.begin_epoch} to {self.num_epoch})"
        )

    def _known(self, symbol):
        """Returns the given parameters that the symbol has. Raises ValueError if there are
        others."""
        found = []
        for arrays, names in (
            (self.arg_params or {}, set(symbol.list_arguments())),
            (self.aux_params or {}, set(symbol.list_auxiliary_states())),
        ):
            others = sorted(set(arrays) - names)
            if others and not self.allow_extra_params:
                raise ValueError(
                    f"the symbol has no {', '.join(others)}; set allow_extra_params=True to "
                    "ignore them"
                )
            found.append({name: array for name, array in arrays.items() if name in names})
        return found

    def _iterator(self, X, y, is_train):
        """Returns an iterator over the arrays, or `X` itself if it is one."""
        from .io import DataIter, NDArrayIter

        if isinstance(X, DataIter):
            return X
        if not isinstance(X, (np.ndarray, nd.NDArray)):
            raise TypeError(f"X must be a DataIter or an array, not {type(X).__name__}")
        if y is None:
            if is_train:
                raise ValueError("y must be given if X is an array")
            y = np.zeros(X.shape[0], np.float32)
        if not isinstance(y, (np.ndarray, nd.NDArray)):
            raise TypeError(f"y must be an array if X is an array, not {type(y).__name__}")
        if X.shape[0] != y.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows, but y has {y.shape[0]}")
        if y.ndim == 2 and y.shape[1] == 1:
            y = y.reshape((-1,))
        if y.ndim != 1:
            raise ValueError(f"y must have one number for each row, not shape {y.shape}")
        batch = min(X.shape[0], self.numpy_batch_size)
        if is_train:
            return NDArrayIter(X, y, batch, shuffle=True, last_batch_handle="roll_over")
        return NDArrayIter(X, y, batch)

    def _evaluation_iterator(self, eval_data):
        from .io import DataIter

        if eval_data is None or isinstance(eval_data, DataIter):
            return eval_data
        if not isinstance(eval_data, (tuple, list)) or len(eval_data) != 2:
            raise TypeError("eval_data must be a DataIter, or a pair of arrays (data, label)")
        data, label = (np.array(x) if isinstance(x, list) else x for x in eval_data)
        if data is None:
            raise ValueError("eval_data has no data")
        return self._iterator(data, label, not (isinstance(data, DataIter) and label is None))

    def _module(self, data, logger, ctx, work_load_list=None) -> BaseModule:
        """Returns a module of the symbol with the inputs of an iterator."""
        from .module import BucketingModule, Module

        names = [one[0] for one in data.provide_data]

        def labels_of(symbol):
            labels = {one[0] for one in data.provide_label or ()}
            return [n for n in symbol.list_arguments() if n in labels]

        options = {"logger": logger or logging, "context": ctx, "work_load_list": work_load_list}
        if self.sym_gen is None:
            return Module(self.symbol, names, labels_of(self.symbol), **options)
        make = self.sym_gen

        def generate(key):
            symbol = make(key)
            return symbol, names, labels_of(symbol)

        self.symbol = make(data.default_bucket_key)
        return BucketingModule(generate, data.default_bucket_key, **options)

    def _predictor(self, data):
        """Returns a module with the parameters that predicts on an iterator's batches."""
        if self.arg_params is None:
            raise MXNetError("the model has no parameters yet; call fit, or pass arg_params")
        module = self._module(data, None, self.ctx[:1])
        module.bind(data.provide_data, data.provide_label, for_training=False)
        module.set_params(*self._known(self.symbol))
        return module

    def fit(
        self,
        X: DataIter | NDArray | np.ndarray[Any, Any],
        y: NDArray | np.ndarray[Any, Any] | None = None,
        eval_data: DataIter | tuple[Any, Any] | None = None,
        eval_metric: Metric = "acc",
        epoch_end_callback: Callbacks | None = None,
        batch_end_callback: Callbacks | None = None,
        kvstore: str | KVStoreBase | None = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        monitor: Monitor | None = None,
        eval_end_callback: Callbacks | None = LogValidationMetricsCallback(),
        eval_batch_end_callback: Callbacks | None = None,
    ) -> None:
        """Trains for the epochs from `begin_epoch` up to `num_epoch`.

        Parameters
        ----------
        X : DataIter or array
            The data, batches or rows.
        y : array, optional
            The labels, one for each row of an array X.
        eval_data : DataIter, or (data, labels), optional
            Data to evaluate after every epoch.
        eval_metric : EvalMetric or str, default 'acc'
            The metric for the training data and `eval_data`.
        epoch_end_callback : function or list of functions (epoch, symbol, arg_params, aux_params)
            Called after each epoch.
        batch_end_callback, eval_end_callback, eval_batch_end_callback : function or list
            Called with a `BatchEndParam` after each batch, after each evaluation, and after each
            batch of an evaluation.
        kvstore : str, default 'local'
            As in `gluon.Trainer`.
        logger : Logger, optional
            Receives the messages.
        work_load_list : list of number, optional
            Relative sizes of the devices' shares of a batch.
        monitor : Monitor, optional
            Monitors the executors.
        """
        from .io import ResizeIter

        data = self._iterator(X, y, True)
        module = self._module(data, logger, self.ctx, work_load_list)
        arg_params, aux_params = self._known(self.symbol)
        module.fit(
            data if self.epoch_size is None else ResizeIter(data, self.epoch_size, False),
            self._evaluation_iterator(eval_data),
            eval_metric,
            epoch_end_callback=epoch_end_callback,
            batch_end_callback=batch_end_callback,
            kvstore=kvstore,
            optimizer=self.optimizer,
            optimizer_params=self.kwargs,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
            initializer=self.initializer,
            arg_params=arg_params,
            aux_params=aux_params,
            allow_missing=True,
            begin_epoch=self.begin_epoch,
            num_epoch=self.num_epoch,
            monitor=monitor,
        )
        self.arg_params, self.aux_params = module.get_params()

    def predict(
        self,
        X: DataIter | NDArray | np.ndarray[Any, Any],
        num_batch: int | None = None,
        return_data: bool = False,
        reset: bool = True,
    ) -> Any:
        """Computes the outputs for the batches of an iterator, or the rows of an array.

        Parameters
        ----------
        X : DataIter or array
            The data.
        num_batch : int, optional
            The maximum number of batches.
        return_data : bool, default False
            True to return the data and labels as well.
        reset : bool, default True
            True to reset the iterator first.

        Returns
        -------
        NumPy array, or a list of them if the symbol has several outputs; with `return_data` a
        tuple of this, the data, and the labels
        """
        X = self._iterator(X, None, False)
        outputs, data, labels = [], [], []
        for found, _, batch in self._predictor(X).iter_predict(X, num_batch, reset):
            outputs.append([one.asnumpy() for one in found])
            if return_data:
                rows = X.batch_size - (batch.pad or 0)
                data.append([one[:rows].asnumpy() for one in batch.data])
                labels.append([one[:rows].asnumpy() for one in batch.label or ()])

        def joined(batches):
            arrays = [np.concatenate(parts) for parts in zip(*batches)]
            return arrays[0] if len(arrays) == 1 else arrays

        return (joined(outputs), joined(data), joined(labels)) if return_data else joined(outputs)

    def score(
        self,
        X: DataIter | NDArray | np.ndarray[Any, Any],
        eval_metric: Metric = "acc",
        num_batch: int | None = None,
        batch_end_callback: Callbacks | None = None,
        reset: bool = True,
    ) -> Any:
        """Computes a metric over the batches of an iterator.

        Parameters
        ----------
        X : DataIter
            The data, with labels.
        eval_metric : EvalMetric or str, default 'acc'
            The metric.
        num_batch : int, optional
            The maximum number of batches.
        batch_end_callback : function or list of functions, optional
            Called with a `BatchEndParam` after each batch.
        reset : bool, default True
            True to reset the iterator first.

        Returns
        -------
        float, or a list of them for a composite metric
        """
        X = self._iterator(X, None, False)
        if not isinstance(eval_metric, metrics.EvalMetric):
            eval_metric = metrics.create(eval_metric)
        self._predictor(X).score(X, eval_metric, num_batch, batch_end_callback, reset=reset)
        return eval_metric.get()[1]

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Writes ``prefix-symbol.json`` and ``prefix-0001.params`` with the epoch's number.

        Parameters
        ----------
        prefix : str
            The prefix of the files' names.
        epoch : int, default num_epoch
            The epoch in the name.
        remove_amp_cast : bool, default True
            True to omit the casts of mixed precision.
        """
        epoch = self.num_epoch if epoch is None else epoch
        if epoch is None or self.symbol is None:
            raise MXNetAssertionError("save: epoch must be given, and the symbol must be trained")
        save_checkpoint(
            prefix,
            epoch,
            self.symbol,
            self.arg_params or {},
            self.aux_params or {},
            remove_amp_cast,
        )

    @staticmethod
    def load(
        prefix: str, epoch: int, ctx: Context | Sequence[Context] | None = None, **kwargs: Any
    ) -> FeedForward:
        """Loads the model of a checkpoint; training continues from its epoch.

        Parameters
        ----------
        prefix : str
            The prefix of the files' names.
        epoch : int
            The epoch in the name.
        ctx : Context or list of Context, default the current context
            The devices.
        **kwargs
            Further parameters of `FeedForward`.

        Returns
        -------
        FeedForward
        """
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        return FeedForward(
            symbol, ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **kwargs
        )

    @staticmethod
    def create(
        symbol: Symbol,
        X: DataIter | NDArray | np.ndarray[Any, Any],
        y: NDArray | np.ndarray[Any, Any] | None = None,
        ctx: Context | Sequence[Context] | None = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: str | Optimizer = "sgd",
        initializer: Initializer = Uniform(0.01),
        eval_data: DataIter | tuple[Any, Any] | None = None,
        eval_metric: Metric = "acc",
        epoch_end_callback: Callbacks | None = None,
        batch_end_callback: Callbacks | None = None,
        kvstore: str | KVStoreBase | None = "local",
        logger: Any = None,
        work_load_list: Sequence[float] | None = None,
        eval_end_callback: Callbacks | None = LogValidationMetricsCallback(),
        eval_batch_end_callback: Callbacks | None = None,
        **kwargs: Any,
    ) -> FeedForward:
        """Creates and trains a model; the parameters are those of `FeedForward` and its `fit`."""
        model = FeedForward(
            symbol,
            ctx,
            num_epoch=num_epoch,
            epoch_size=epoch_size,
            optimizer=optimizer,
            initializer=initializer,
            **kwargs,
        )
        model.fit(
            X,
            y,
            eval_data,
            eval_metric,
            epoch_end_callback,
            batch_end_callback,
            kvstore,
            logger,
            work_load_list,
            eval_end_callback=eval_end_callback,
            eval_batch_end_callback=eval_batch_end_callback,
        )
        return model

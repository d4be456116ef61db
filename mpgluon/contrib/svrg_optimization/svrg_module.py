"""`SVRGModule`: a `Module` with variance-reduced gradients."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ... import ndarray as nd
from ...module import Module
from ...module.module import executors
from .svrg_optimizer import SVRGOptimizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..._core import NDArray
    from ..._types import Arrays, DataShapes, Devices, Groups
    from ...io import DataBatch, DataIter
    from ...kvstore import KVStoreBase
    from ...optimizer import Optimizer
    from ...symbol import Symbol

__all__ = ["SVRGModule"]


class SVRGModule(Module):
    """A `Module` trained by stochastic variance-reduced gradients (Johnson and Zhang, 2013).

    Every `update_freq` epochs it takes a snapshot of the parameters, and computes their gradient
    over all data. A step uses the gradient of its batch, minus the snapshot's gradient of that
    batch, plus the snapshot's gradient over all data.

    Parameters
    ----------
    symbol, data_names, label_names, logger, context, work_load_list, fixed_param_names
        As in `Module`.
    state_names, group2ctxs, compression_params
        As in `Module`.
    update_freq : int
        The number of epochs between computations of the full gradients. TypeError if it is not an
        integer, ValueError below 1.

    Examples
    --------
    >>> x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
    >>> loss = mx.sym.LinearRegressionOutput(x, mx.sym.var("label"))
    >>> samples = np.random.RandomState(0).rand(20, 2).astype("float32")
    >>> data = mx.io.NDArrayIter(samples, {"label": samples @ [1.0, 2.0]}, batch_size=5)
    >>> module = mx.contrib.svrg_optimization.SVRGModule(
    ...     loss, label_names=["label"], update_freq=2
    ... )
    >>> params = {"learning_rate": 0.2}
    >>> module.fit(data, eval_metric="mse", optimizer_params=params, num_epoch=90)
    >>> module.score(data, "mse")[0][1] < 0.01
    True
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
        update_freq: int | None = None,
    ) -> None:
        if not isinstance(update_freq, int):
            raise TypeError(
                "SVRGModule: update_freq, the epochs between gradients over all data, must be "
                f"an integer, not {update_freq!r}"
            )
        if update_freq <= 0:
            raise ValueError(f"SVRGModule: update_freq must be at least 1 epoch, not {update_freq}")
        options = (
            symbol,
            data_names,
            label_names,
            logger,
            context,
            work_load_list,
            fixed_param_names,
            state_names,
            group2ctxs,
            compression_params,
        )
        self._mod_aux = Module(*options)
        super().__init__(*options)
        self.update_freq = update_freq
        self._param_dict: list[dict[str, NDArray]] | None = None  # full gradients, per device

    def _reset_bind(self):
        super()._reset_bind()
        self._mod_aux._reset_bind()

    def bind(
        self,
        data_shapes: DataShapes,
        label_shapes: DataShapes | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Module | None = None,
        grad_req: str | Sequence[str] | dict[str, str] = "write",
    ) -> None:
        """Binds the module and, for training, the snapshot."""
        options = (inputs_need_grad, force_rebind, shared_module, grad_req)
        super().bind(data_shapes, label_shapes, for_training, *options)
        if for_training:
            self._mod_aux.bind(data_shapes, label_shapes, for_training, *options)

    def reshape(self, data_shapes: DataShapes, label_shapes: DataShapes | None = None) -> None:
        """Rebinds both for other shapes."""
        super().reshape(data_shapes, label_shapes)
        self._mod_aux.reshape(data_shapes, label_shapes)

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Installs an optimizer; see `Module.init_optimizer`."""
        self._require(params=True)
        self._param_dict = [
            {name: nd.zeros_like(executor.arg_dict[name]) for name in self._param_names}
            for executor in self._execs
        ]
        names = dict(enumerate(self._param_names))
        for name in self._param_names:
            names[len(names)] = name + "_full"
        params = {"rescale_grad": 1.0 / self._batch_size, **dict(optimizer_params)}
        wrapped = SVRGOptimizer(optimizer, param_idx2name=names, sym=self._symbol, **params)
        super().init_optimizer(kvstore, wrapped, force_init=force_init)

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs for a batch and, in training, those of the snapshot."""
        super().forward(data_batch, is_train)
        if self.for_training if is_train is None else is_train:
            self._mod_aux.forward(data_batch, is_train)

    def backward(self, out_grads: Arrays | None = None) -> None:
        """Computes the gradients of both."""
        super().backward(out_grads)
        if self._mod_aux.binded:
            self._mod_aux.backward(out_grads)

    def update(self) -> None:
        """Corrects the gradients, and updates the parameters with them."""
        self._update_svrg_gradients()
        super().update()

    def update_full_grads(self, train_data: DataIter) -> None:
        """Takes a snapshot of the parameters, and computes its mean gradient over all batches."""
        self._require(params=True, optimizer=True)
        self._mod_aux.set_params(*self.get_params())
        train_data.reset()
        batches, padding = 0, 0
        for batch in train_data:
            self._mod_aux.forward(batch, is_train=True)
            self._mod_aux.backward()
            batches, padding = batches + 1, batch.pad or 0
            for full, gradients in self._full_and_copied():
                for name, grad in gradients.items():
                    # As in MXNet, the former full gradient is included as one more summand.
                    full[name] += grad
        count = batches - padding / train_data.batch_size
        devices = len(self._param_dict)
        for name in self._param_names:
            parts = [full[name] / count for full in self._param_dict]
            total = parts[0]
            for part in parts[1:]:
                total = total + part.as_in_context(total.context)
            for full in self._param_dict:
                (total / devices).copyto(full[name])

    def _full_and_copied(self):
        """Yields the full gradients and the snapshot's last gradients, for each device."""
        for full, executor in zip(self._param_dict, executors(self._mod_aux), strict=True):
            gradients = executor.grad_dict
            yield full, {name: gradients[name] for name in full if gradients[name] is not None}

    def _update_svrg_gradients(self):
        for executor, (full, copied) in zip(self._execs, self._full_and_copied(), strict=True):
            for name, grad in copied.items():
                ours = executor.grad_dict[name]
                ours -= grad
                ours += full[name]

    def _begin_epoch(self, epoch, train_data):
        if epoch % self.update_freq == 0:
            self.update_full_grads(train_data)
            train_data.reset()

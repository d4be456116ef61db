"""Modules written in Python, without a symbol."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import ndarray as nd
from ..initializer import Uniform
from ..io import DataDesc
from .base_module import BaseModule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import Arrays, DataShapes, Shape
    from ..initializer import Initializer
    from ..io import DataBatch
    from ..kvstore import KVStoreBase
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..optimizer import Optimizer


__all__ = ["PythonModule", "PythonLossModule"]


class PythonModule(BaseModule):
    """The base of modules without parameters.

    A subclass defines `_compute_output_shapes`, `forward`, `backward`, `get_outputs` and
    `get_input_grads`.

    Parameters
    ----------
    data_names, label_names, output_names : list of str
        `label_names` may be None.
    logger : logging.Logger, default logging
        Receives the messages.
    """

    def __init__(
        self,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        output_names: Sequence[str],
        logger: Any = logging,
    ) -> None:
        super().__init__(logger)
        self._data_names = list(data_names)
        self._label_names = None if label_names is None else list(label_names)
        self._output_names = list(output_names)
        self._data_shapes = self._label_shapes = self._output_shapes = None

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
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        return self._output_shapes

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
        """Records the shapes; see `Module.bind`."""
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if grad_req != "write":
            raise AssertionError(
                f"{type(self).__name__} overwrites gradients; grad_req={grad_req!r} is not "
                "supported"
            )
        for shapes, names, what in (
            (data_shapes, self._data_names, "data"),
            (label_shapes, self._label_names, "label"),
        ):
            given = [desc[0] for desc in shapes or ()]
            if shapes is not None and given != names:
                raise AssertionError(
                    f"bind: {what}_shapes are for {given}, but the module's {what}_names are "
                    f"{names}"
                )
        self.for_training: bool = for_training
        self.inputs_need_grad: bool = inputs_need_grad
        self._data_shapes = [
            desc if isinstance(desc, DataDesc) else DataDesc(*desc) for desc in data_shapes
        ]
        self._label_shapes = label_shapes
        self._output_shapes = self._compute_output_shapes()
        self.binded = True

    def _compute_output_shapes(self):
        """Returns (name, shape) of the outputs.

        They depend on `self._data_shapes` and `self._label_shapes`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define _compute_output_shapes")

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Returns two empty dicts."""
        return {}, {}

    def init_params(
        self,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Does nothing: there are no parameters."""
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Does nothing: there are no parameters."""
        self.optimizer_initialized = True

    def update(self) -> None:
        """Does nothing: there are no parameters."""

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        """Updates a metric with the outputs, if the module has labels."""
        if self._label_shapes is None:
            return
        if pre_sliced:
            raise RuntimeError(f"{type(self).__name__} supports only whole batches of labels")
        eval_metric.update(labels, self.get_outputs())


class PythonLossModule(PythonModule):
    """A loss at the end of a `SequentialModule`, whose gradient a Python function computes.

    Parameters
    ----------
    name : str, default 'pyloss'
        The prefix of the outputs' names.
    data_names, label_names : one name each
        Names of the inputs.
    grad_func : function, optional
        ``grad_func(scores, labels)`` returns the gradient with respect to the scores, an NDArray or
        a NumPy array. Without it a subclass defines `_backward_impl`.
    logger : logging.Logger, default logging
        Receives the messages.

    Examples
    --------
    >>> module = mx.mod.PythonLossModule(grad_func=lambda scores, labels: scores - labels)
    >>> module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    >>> batch = mx.io.DataBatch([nd.array([[3], [4]])], [nd.array([[1], [1]])])
    >>> module.forward(batch, is_train=True)
    >>> module.backward()
    >>> module.get_input_grads()[0].asnumpy().tolist()
    [[2.0], [3.0]]
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        grad_func: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        if len(self._data_names) != 1 or len(self._label_names) != 1:
            raise AssertionError("PythonLossModule must have one data and one label")
        if grad_func is not None and not callable(grad_func):
            raise AssertionError("grad_func must be a function of scores and labels")
        self._name = name
        self._grad_func = grad_func
        self._scores = self._labels = self._scores_grad = None

    def _compute_output_shapes(self):
        return [(f"{self._name}_output", self._data_shapes[0].shape)]

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Stores the scores and, in training, the labels."""
        self._scores = data_batch.data[0]
        if self.for_training if is_train is None else is_train:
            self._labels = data_batch.label[0]

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the scores."""
        return [self._scores]

    def backward(self, out_grads: Arrays | None = None) -> None:
        """Computes the gradient of the scores."""
        if out_grads is not None:
            raise AssertionError("a loss is the last module and cannot receive out_grads")
        self._require(training=True)
        self._backward_impl()

    def _backward_impl(self):
        if self._grad_func is None:
            raise NotImplementedError(
                f"{type(self).__name__}: grad_func is missing; pass it, or define "
                "_backward_impl in a subclass"
            )
        grad = self._grad_func(self._scores, self._labels)
        self._scores_grad = (
            grad if isinstance(grad, nd.NDArray) else nd.array(grad, ctx=self._scores.context)
        )

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        """Returns the gradient of the scores."""
        return [self._scores_grad]

    def install_monitor(self, mon: Monitor) -> None:
        """Raises NotImplementedError: there is no executor to monitor."""
        raise NotImplementedError(
            "a PythonLossModule has no executor to monitor; install the monitor on the modules "
            "before it"
        )

"""`SequentialModule`: a chain of modules; the outputs of each are the data of the next."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

from ..initializer import Uniform
from ..io import DataDesc
from .base_module import BaseModule
from .module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import Arrays, DataShapes, Shape
    from ..initializer import Initializer
    from ..io import DataBatch
    from ..kvstore import KVStoreBase
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..optimizer import Optimizer


__all__ = ["SequentialModule"]


def _behind_another(module, grad_req):
    """Returns `grad_req` for a module whose data are another module's outputs.

    The gradients of the data are written even if parameter gradients accumulate, because they are
    passed back separately for each batch.
    """
    if not isinstance(module, Module) or isinstance(grad_req, (list, tuple)):
        return grad_req
    if isinstance(grad_req, str):
        grad_req = dict.fromkeys(module.symbol.list_arguments(), grad_req)
    return {**grad_req, **dict.fromkeys(module.data_names, "write")}


class SequentialModule(BaseModule):
    """A chain of modules; see `add`.

    Examples
    --------
    >>> x = mx.sym.var("data")
    >>> module = mx.mod.SequentialModule()
    >>> dense = mx.sym.FullyConnected(x, num_hidden=4)
    >>> _ = module.add(mx.mod.Module(dense, label_names=[]))
    >>> relu = mx.mod.Module(mx.sym.relu(x, name="r"), label_names=[])
    >>> _ = module.add(relu, auto_wiring=True)
    >>> module.bind([("data", (2, 3))])
    >>> module.output_shapes
    [('r_output', (2, 4))]
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging) -> None:
        super().__init__(logger)
        self._modules = []
        self._metas = []
        self._label_shapes = None

    def add(self, module: BaseModule, **kwargs: Any) -> SequentialModule:
        """Appends a module to the chain.

        Parameters
        ----------
        module : BaseModule
            The module to append.
        take_labels : bool, default False
            True if it receives the labels.
        auto_wiring : bool, default False
            True to rename the preceding outputs to its data names.

        Returns
        -------
        SequentialModule
            Itself.
        """
        known = (self.META_TAKE_LABELS, self.META_AUTO_WIRING)
        for key in kwargs:
            if key not in known:
                raise AssertionError(
                    f"add: unknown option {key!r}; expected one of {', '.join(known)}"
                )
        self._modules.append(module)
        self._metas.append(kwargs)
        self.binded: bool = False
        self.params_initialized: bool = False
        self.optimizer_initialized: bool = False
        return self

    @property
    def data_names(self) -> Sequence[str]:
        return self._modules[0].data_names if self._modules else []

    @property
    def output_names(self) -> Sequence[str]:
        return self._modules[-1].output_names if self._modules else []

    @property
    def data_shapes(self) -> list[DataDesc]:
        self._require()
        return self._modules[0].data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        self._require()
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        self._require()
        return self._modules[-1].output_shapes

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
        """Binds all modules, each for the outputs of the preceding one; see `Module.bind`."""
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if inputs_need_grad and not for_training:
            raise AssertionError("inputs_need_grad needs for_training")
        if shared_module is not None:
            raise AssertionError("shared_module for SequentialModule is not supported")
        if not self._modules:
            raise AssertionError("the SequentialModule is empty; add modules before bind")
        shapes = data_shapes
        for i, (module, meta) in enumerate(zip(self._modules, self._metas)):
            if meta.get(self.META_AUTO_WIRING):
                if len(module.data_names) != len(shapes):
                    raise AssertionError(
                        f"module {i} has {len(module.data_names)} data names, but got "
                        f"{len(shapes)} arrays"
                    )
                shapes = [DataDesc(name, desc[1]) for name, desc in zip(module.data_names, shapes)]
            module.bind(
                shapes,
                label_shapes if meta.get(self.META_TAKE_LABELS) else None,
                for_training,
                bool(inputs_need_grad or (for_training and i > 0)),
                force_rebind,
                None,
                _behind_another(module, grad_req) if i > 0 else grad_req,
            )
            shapes = module.output_shapes
        self.for_training: bool = for_training
        self.inputs_need_grad: bool = inputs_need_grad
        self._label_shapes = (
            label_shapes if any(meta.get(self.META_TAKE_LABELS) for meta in self._metas) else None
        )
        self.binded = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Returns the parameters and auxiliary states of all modules."""
        self._require(params=True)
        arguments, states = {}, {}
        for module in self._modules:
            more, more_states = module.get_params()
            arguments.update(more)
            states.update(more_states)
        return arguments, states

    def init_params(
        self,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initializes all modules; see `Module.init_params`.

        Raises AssertionError if two have a parameter of the same name.
        """
        if self.params_initialized and not force_init:
            return
        self._require()
        for module in self._modules:
            module.init_params(
                initializer, arg_params, aux_params, allow_missing, force_init, allow_extra
            )
        owners = {}
        for i, module in enumerate(self._modules):
            for name in [name for arrays in module.get_params() for name in arrays]:
                if name in owners:
                    raise AssertionError(
                        f"Duplicated parameter names: {name!r} is in module {i} and in module "
                        f"{owners[name]}"
                    )
                owners[name] = i
        self.params_initialized = True

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Installs an optimizer in every module; see `Module.init_optimizer`."""
        self._require(params=True)
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring.")
            return
        for module in self._modules:
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        self._require(params=True)
        batch = copy.copy(data_batch)
        for module in self._modules:
            module.forward(batch, is_train)
            if module is not self._modules[-1]:
                batch.data = module.get_outputs()
                batch.provide_data = [
                    DataDesc(name, array.shape)
                    for (name, _), array in zip(module.output_shapes, batch.data)
                ]

    def backward(self, out_grads: Arrays | None = None) -> None:
        self._require(params=True, training=True)
        for module in reversed(self._modules):
            module.backward(out_grads)
            if module is not self._modules[0]:
                out_grads = module.get_input_grads()

    def update(self) -> None:
        self._require(params=True, optimizer=True)
        for module in self._modules:
            module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        self._require(params=True)
        return self._modules[-1].get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        self._require(params=True)
        if not self.inputs_need_grad:
            raise AssertionError(
                "bind the module with inputs_need_grad=True for the gradients of its inputs"
            )
        return self._modules[0].get_input_grads(merge_multi_context)

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        self._require(params=True)
        for module, meta in zip(self._modules, self._metas):
            if meta.get(self.META_TAKE_LABELS):
                module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Monitor) -> None:
        self._require()
        for module in self._modules:
            module.install_monitor(mon)

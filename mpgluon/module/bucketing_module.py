"""`BucketingModule`: one symbol per kind of batch, such as a sequence length, with shared
parameters."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from .. import ndarray as nd, symbol as symbols
from ..initializer import Uniform
from ..model import load_params
from ..name import NameManager
from .base_module import BaseModule
from .module import Module, give_back, note_updates, share_params

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .._core import NDArray
    from .._internal.types import Arrays, DataShapes, Devices, Groups, Shape
    from ..initializer import Initializer
    from ..io import DataBatch, DataDesc
    from ..kvstore import KVStoreBase
    from ..legacy.monitor import Monitor
    from ..metric import EvalMetric
    from ..optimizer import Optimizer
    from ..symbol import Symbol


__all__ = ["BucketingModule"]


class BucketingModule(BaseModule):
    """Modules that share parameters, created on demand for each new kind of batch.

    Parameters
    ----------
    sym_gen : function
        ``sym_gen(bucket_key)`` returns ``(symbol, data_names, label_names)``.
    default_bucket_key : anything
        The largest bucket's key; its module is bound first, and has all parameters.
    logger, context, work_load_list, fixed_param_names, state_names, group2ctxs, compression_params
        As in `Module`.

    Examples
    --------
    >>> def network(length):
    ...     x = mx.sym.Embedding(mx.sym.var("data"), input_dim=5, output_dim=length)
    ...     total = mx.sym.sum(x, axis=(1, 2)).reshape((-1, 1))
    ...     y = mx.sym.FullyConnected(total, num_hidden=2)
    ...     return mx.sym.SoftmaxOutput(y, name="softmax"), ("data",), ("softmax_label",)
    >>> module = mx.mod.BucketingModule(network, default_bucket_key=4)
    >>> module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    >>> module.output_shapes
    [('softmax_output', (2, 2))]
    """

    def __init__(
        self,
        sym_gen: Callable[[Any], tuple[Symbol, Sequence[str], Sequence[str]]],
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Devices | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Groups | Sequence[Groups] | None = None,
        compression_params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise AssertionError("default_bucket_key must be given")
        self._sym_gen = sym_gen
        self._default_bucket_key = default_bucket_key
        self._options = {
            "logger": logger,
            "context": context,
            "work_load_list": work_load_list,
            "fixed_param_names": fixed_param_names,
            "state_names": state_names,
            "group2ctxs": group2ctxs,
            "compression_params": compression_params,
        }
        self._buckets = {}
        self._loaded = {}  # bucket -> its symbol, if it was loaded from a checkpoint
        self._params = None  # parameters from a checkpoint, until `bind` sets them
        self._curr_module = None
        self._curr_bucket_key = None
        self._monitor = None
        self._grad_req = "write"

    def _generated(self, key):
        """Calls sym_gen in a new NameManager, so that all buckets get the same generated names."""
        with NameManager():
            return self._sym_gen(key)

    def converted(
        self, convert: Callable[[Symbol], Symbol], params: tuple[dict[str, Any], dict[str, Any]]
    ) -> BucketingModule:
        """Returns an unbound module with every bucket's symbol converted, and these parameters."""
        module = BucketingModule(
            lambda key: (convert(self._symbol_of(key)), *self._generated(key)[1:]),
            self._default_bucket_key,
            **self._options,
        )
        module._params, module.params_initialized = params, True
        return module

    @property
    def default_symbol(self) -> Symbol:
        """The symbol of the default bucket."""
        return self._symbol_of(self._default_bucket_key)

    def _symbol_of(self, key):
        return self._loaded[key] if key in self._loaded else self._generated(key)[0]

    def _module(self, key):
        return Module(self._symbol_of(key), *self._generated(key)[1:], **self._options)

    @property
    def data_names(self) -> Sequence[str]:
        return (
            self._curr_module.data_names
            if self._curr_module is not None
            else list(self._generated(self._default_bucket_key)[1])
        )

    @property
    def label_names(self) -> Sequence[str]:
        """The names of the labels of the current bucket (of the default one before `bind`)."""
        return (
            self._curr_module.label_names
            if self._curr_module is not None
            else list(self._generated(self._default_bucket_key)[2] or ())
        )

    @property
    def data_shapes(self) -> list[DataDesc]:
        return self._bound().data_shapes

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        return self._bound().label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        return self._bound().output_shapes

    @property
    def symbol(self) -> Symbol | None:
        return self._bound().symbol

    @property
    def output_names(self) -> Sequence[str]:
        return (
            self._curr_module.output_names
            if self._curr_module is not None
            else self._generated(self._default_bucket_key)[0].list_outputs()
        )

    def _bound(self):
        self._require()
        return self._curr_module

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
        """Binds the default bucket; see `Module.bind`."""
        if shared_module is not None:
            raise AssertionError("shared_module for BucketingModule is not supported")
        former = self.get_params() if self.params_initialized and self.binded else self._params
        if force_rebind:
            self.binded: bool = False
            self._buckets = {}
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self.for_training: bool = for_training
        self.inputs_need_grad: bool = inputs_need_grad
        self._grad_req = grad_req
        module = self._module(self._default_bucket_key)
        module.bind(data_shapes, label_shapes, for_training, inputs_need_grad, grad_req=grad_req)
        self._curr_module, self._curr_bucket_key = module, self._default_bucket_key
        self._buckets = {self._default_bucket_key: module}
        self.binded = True
        if former is not None:
            self.set_params(*former)
            self._params = None

    def switch_bucket(
        self, bucket_key: Any, data_shapes: DataShapes, label_shapes: DataShapes | None = None
    ) -> None:
        """Makes a bucket the current one, binding it if it is new.

        The memory that the previous bucket kept for its backward pass is released.
        """
        self._require()
        module = self._bind_bucket(bucket_key, data_shapes, label_shapes)
        if self._curr_module is not module:
            give_back(self._curr_module)  # so that only one bucket holds outputs and activations
        self._curr_module, self._curr_bucket_key = module, bucket_key

    def _bind_bucket(self, bucket_key, data_shapes, label_shapes):
        module = self._buckets.get(bucket_key)
        default = self._buckets[self._default_bucket_key]
        if module is None:
            module = self._module(bucket_key)
            module.bind(
                data_shapes,
                label_shapes,
                self.for_training,
                self.inputs_need_grad,
                shared_module=default,
                grad_req=self._grad_req,
            )
            if self._monitor is not None:
                module.install_monitor(self._monitor)
            self._buckets[bucket_key] = module
        if self.optimizer_initialized and not module.optimizer_initialized:
            module.borrow_optimizer(default)
        if self.params_initialized and not module.params_initialized:
            share_params(module, default)
        return module

    def init_params(
        self,
        initializer: Initializer | None = Uniform(0.01),
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initializes the parameters; see `Module.init_params`."""
        if self.params_initialized and not force_init:
            return
        self._require()
        self._buckets[self._default_bucket_key].init_params(
            initializer, arg_params, aux_params, allow_missing, force_init, allow_extra
        )
        self._note_params()

    def _note_params(self):
        """Records that the parameters of the default bucket are set. It owns the arrays that all
        buckets share."""
        for module in self._buckets.values():
            module.params_initialized = True
        self.params_initialized = True

    def set_params(
        self,
        arg_params: dict[str, NDArray] | None,
        aux_params: dict[str, NDArray] | None,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Sets the parameters; see `Module.set_params`."""
        if not allow_missing or self.params_initialized and not force_init:
            self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)
            return
        self._require()
        self._buckets[self._default_bucket_key].set_params(
            arg_params, aux_params, allow_missing, force_init, allow_extra
        )
        self._note_params()

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Returns the parameters; see `Module.get_params`."""
        self._require(params=True)
        default = self._buckets[self._default_bucket_key]
        note_updates(default, self._buckets.values())
        return default.get_params()

    def init_optimizer(
        self,
        kvstore: str | KVStoreBase | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: dict[str, Any] | Sequence[tuple[str, Any]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Installs an optimizer; see `Module.init_optimizer`."""
        self._require(params=True)
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring.")
            return
        default = self._buckets[self._default_bucket_key]
        default.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        for module in self._buckets.values():
            if module is not default:
                module.borrow_optimizer(default)
        self.optimizer_initialized = True

    def prepare(
        self, data_batch: DataBatch, sparse_row_id_fn: Callable[..., Any] | None = None
    ) -> None:
        """Binds the batch's bucket before its forward; the current bucket is unchanged."""
        self._require(params=True)
        self._bind_bucket(data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label)

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Computes the outputs with the module of ``data_batch.bucket_key``."""
        self._require(params=True)
        self.switch_bucket(data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label)
        self._curr_module.forward(data_batch, is_train)

    def backward(self, out_grads: Arrays | None = None) -> None:
        self._bound().backward(out_grads)

    def update(self) -> None:
        self._require(params=True, optimizer=True)
        self._curr_module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        return self._bound().get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        return self._bound().get_input_grads(merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[NDArray | Any]:
        return self._bound().get_states(merge_multi_context)

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        self._bound().set_states(states, value)

    def update_metric(
        self, eval_metric: EvalMetric, labels: Sequence[Any], pre_sliced: bool = False
    ) -> None:
        self._bound().update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Monitor) -> None:
        self._require()
        self._monitor = mon
        for module in self._buckets.values():
            module.install_monitor(mon)

    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: bool = False) -> None:
        """Writes the parameters, the keys of the buckets so far, and the symbol of each.

        The files are ``prefix-0001.params``, ``prefix.buckets`` (keys must be integers) and
        ``prefix-10-symbol.json``.
        """
        self._require(params=True)
        for key in self._buckets:
            if not isinstance(key, (int, np.integer)):
                raise TypeError(
                    f"save_checkpoint: the bucket key {key!r} is not an integer; save its "
                    "symbol and the parameters separately"
                )
        nd.save(f"{prefix}.buckets", [nd.array(list(self._buckets), dtype="int32")])
        for key, module in self._buckets.items():
            module.symbol.save(f"{prefix}-{key}-symbol.json", remove_amp_cast=remove_amp_cast)
        self.save_params(f"{prefix}-{epoch:04d}.params")

    @staticmethod
    def load(
        prefix: str,
        epoch: int,
        sym_gen: Callable[[Any], Any] | None = None,
        default_bucket_key: Any = None,
        **kwargs: Any,
    ) -> BucketingModule:
        """Loads a checkpoint written by `save_checkpoint`.

        `sym_gen` creates the symbols of further buckets; `kwargs` are passed to `BucketingModule`.
        """
        keys = [int(key) for key in nd.load(f"{prefix}.buckets")[0].asnumpy()]
        loaded = {key: symbols.load(f"{prefix}-{key}-symbol.json") for key in keys}
        return BucketingModule.load_dict(
            loaded, sym_gen, default_bucket_key, *load_params(prefix, epoch), **kwargs
        )

    @staticmethod
    def load_dict(
        sym_dict: dict[Any, Symbol] | None = None,
        sym_gen: Callable[[Any], Any] | None = None,
        default_bucket_key: Any = None,
        arg_params: dict[str, NDArray] | None = None,
        aux_params: dict[str, NDArray] | None = None,
        **kwargs: Any,
    ) -> BucketingModule:
        """Creates a module from symbols by bucket, and parameters by name.

        `kwargs` are passed to `BucketingModule`.
        """
        for value, what in (
            (sym_dict, "sym_dict"),
            (sym_gen, "sym_gen"),
            (arg_params, "arg_params"),
            (aux_params, "aux_params"),
        ):
            if value is None:
                raise AssertionError(f"{what} is needed to load a BucketingModule")
        module = BucketingModule(sym_gen, default_bucket_key, **kwargs)
        module._loaded = dict(sym_dict)
        module._params = arg_params, aux_params
        module.params_initialized = True
        return module

"""`Parameter`: a trainable array with a copy on each of its devices."""

from __future__ import annotations

import warnings
import weakref
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core, autograd, initializer, ndarray as nd, random
from ..._core import at_once, dtype_name, mark_variables, set_attributes, side_context
from ..._internal import kinds
from ..._internal.hints import PARAMETER_SETTINGS, unsettable
from ..._internal.ranks.own_arrays import brought_to_all
from ...base import MXNetAssertionError, MXNetError, NotSupportedError
from ...context import Context, computes, current_context
from ...ndarray._sparse.row_gradients import RowGradientWeight, RowSparseGradient, row_sparse_part
from .._compiled import tracing
from .._tree import ChangeCount
from ..utils import context_list, shape_is_known
from ._gradient_contents import Gradients, contents_of, filled, left_behind, on_devices, written
from ._mxnet_names import MXNetNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..._internal.types import ArrayLike, Devices, DType, Init, NDArray, Shape, Symbol
    from ..trainer import Trainer

tensor_types: tuple[type[NDArray], ...] = (nd.NDArray,)

# Number of random generator calls that each initialization reserves, even a deferred one. Initial
# values therefore do not depend on when or on which device they are drawn.
_CALLS_PER_INITIALIZATION = 64


def _reserve_random_calls():
    """Reserves the random calls of one initialization. Returns the random state that the
    initialization must use."""
    key = seed, call = _core.random_state()
    _core.random_restore((seed, call + _CALLS_PER_INITIALIZATION))
    return key


# Owner of a parameter: none so far, the ParameterDict that created it, or the blocks that hold it
# as an attribute.
UNOWNED, OWNED_BY_DICT, OWNED_BY_BLOCKS = range(3)


class DeferredInitializationError(MXNetError):
    """Raised if a parameter's value is used before the first forward pass has inferred its
    shape."""


# Counts the changes of the `_COUNTED` attributes of all parameters.
parameter_changes = ChangeCount()
_COUNTED = frozenset(("arrays", "gradients", "lr_mult", "wd_mult"))


def _dense(array):
    """Returns an array without sparse storage, which arrays of mx.np never have."""
    return array if array.stype == "default" else array.tostype("default")


def _plain(array):
    """Converts an array to dense storage, without its gradient."""
    return array.plain if isinstance(array, RowGradientWeight) else _dense(array)


class Parameter(MXNetNames):
    """A weight of a block.

    After `initialize`, it holds an array on each of its devices and, unless `grad_req` is
    ``'null'``, a gradient for each array. A gradient is zero at first, and its memory is allocated
    when it is first used. The arrays of a replicated parameter are independent; `Trainer` keeps
    them equal.

    Parameters
    ----------
    name : str, default the name of the block's attribute to which it is assigned
        Name of the parameter, unique among the parameters of a Trainer.
    grad_req : {'write', 'add', 'null'}, default 'write'
        Whether backward overwrites the gradient, adds to it (call `zero_grad` between steps), or
        computes none.
    shape : int or tuple of int, optional
        Shape; 0 for a dimension that is not known yet.
    dtype : str or numpy.dtype, default 'float32'
        Data type of value and gradient.
    lr_mult, wd_mult : float, default 1.0
        Factors for the optimizer's learning rate and weight decay.
    init : Initializer or str, optional
        Initializer that overrides the one given to ``net.initialize``.
    allow_deferred_init : bool, default False
        Whether `initialize` may be called while the shape is unknown.
    differentiable : bool, default True
        False fixes `grad_req` to ``'null'``.
    stype : {'default', 'row_sparse'}, default 'default'
        Storage type that the value has for users. With 'row_sparse', `row_sparse_data` returns
        rows of the value and `data` raises an error. Internally, the arrays are dense.
    grad_stype : {'default', 'row_sparse'}, default 'default'
        Storage type of the gradient. With 'row_sparse', the gradient holds only the rows that the
        forward pass used.

    Notes
    -----
    The following attributes are internal to the package: `arrays` and `gradients` (device -> array,
    or None), `deferred_init` (the arguments of a pending initialization, or empty), `placed` (the
    devices to which the network's placement assigns the parameter, or None), `floating`,
    `replaced`, `owner`, `left`, `family` (the split parameter that this parameter is a part of),
    `is_numpy` (True if the arrays are of ``mx.np``), `fixed` (True if the parameter has
    ``differentiable=False``, but its layer does not update it either), `joined` (if
    `Mesh.partition` has divided the parameter: the device on which its layer computes, and the
    parts).

    Examples
    --------
    >>> weight = gluon.Parameter("weight", shape=(2, 3), init="ones")
    >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    >>> weight
    Parameter weight (shape=(2, 3), dtype=<class 'numpy.float32'>)
    >>> weight.data(mx.cpu(1)).asnumpy().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    family: Any = None
    placed: list[Context] | None = None
    is_numpy: bool = False
    fixed: bool = False
    joined: tuple[Context, list[Parameter]] | None = None

    def __init__(
        self,
        name: str | None = None,
        grad_req: str = "write",
        shape: int | Sequence[int] | None = None,
        dtype: DType = np.float32,
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        init: Init | None = None,
        allow_deferred_init: bool = False,
        differentiable: bool = True,
        stype: str = "default",
        grad_stype: str = "default",
    ) -> None:
        # False until adopt() gives the parameter the name of the block's attribute
        self.named: bool = name is not None
        name = "weight" if name is None else name
        for kind, value in (("stype", stype), ("grad_stype", grad_stype)):
            if value not in ("default", "row_sparse"):
                raise MXNetAssertionError(
                    f"Parameter '{name}': {kind} must be 'default' or 'row_sparse', not {value!r}"
                )
        self._var = None
        self._calls = None  # weak references to compiled calls that hold the arrays
        # Arrays by device, in the order in which the devices were given.
        self.arrays: dict[Context, NDArray] | None = None
        self.gradients: Mapping[Context, NDArray] | None = None
        # (init, devices, default initializer, value or None, random key)
        self.deferred_init: tuple[Any, ...] = ()
        self._trainer = None
        self.replaced: str | None = None  # reason if the layer was replaced in the network
        self.owner = UNOWNED
        # Replaced arrays on the autograd tape, whose gradients backward may still write.
        self.left: Sequence[NDArray] = ()
        self.floating = False  # True if it moves to the device of the first group that uses it
        self.differentiable = differentiable
        self._allow_deferred_init = allow_deferred_init
        self._grad_req = None
        self._shape = (
            (shape,) if isinstance(shape, int) else shape if shape is None else tuple(shape)
        )
        self._dtype = dtype
        self.stype = stype
        self.grad_stype = grad_stype
        self.name = name
        self.lr_mult = lr_mult
        self.wd_mult = wd_mult
        self.grad_req = grad_req
        self.init = init

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name} (shape={self.shape}, dtype={self.dtype})"

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARAMETER_SETTINGS:
            raise unsettable(self, name)
        object.__setattr__(self, name, value)
        if name == "arrays":
            self._unbind()
        if name == "name":
            self._var = None  # the cached symbol has the old name
        if name in _COUNTED:
            parameter_changes.note()

    def _hold(self, *before, **values):
        """Replaces `arrays` and related attributes atomically: after an interrupt, either all old
        or all new values are visible. The changes `before` (`_core.at_once`) are included."""
        self._unbind()  # also before the change: an interrupt after it would skip the call below
        parameter_changes.note()
        at_once(*before, (set_attributes, self, *chain(*values.items())))
        self._unbind()
        parameter_changes.note()

    def bound_by(self, call: Any) -> None:
        """Registers a compiled call that holds the parameter's arrays. When the arrays are
        replaced, the parameter calls ``call.unbind()``."""
        while True:
            calls = self._calls
            if calls is None:
                calls = self._calls = set()
            calls.add(weakref.ref(call, calls.discard))
            if self._calls is calls:  # no other thread has replaced the set meanwhile
                return

    def _unbind(self):
        # Keep all references, so that an interrupt loses none. Dead references remove themselves.
        for reference in list(self._calls or ()):
            call = reference()
            if call is not None:
                call.unbind()

    @property
    def grad_req(self) -> str:
        """'write', 'add' or 'null'. Can be set at any time. Another value resets the gradient to
        zero, and 'null' releases its arrays."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        if req not in ("write", "add", "null"):
            raise MXNetAssertionError(
                f"Parameter '{self.name}': grad_req must be 'write', 'add' or 'null', not {req!r}"
            )
        if not self.differentiable:
            req = "null"
        if self._grad_req == req:
            return
        if self.arrays is None:
            self._grad_req = req
        elif req == "null":
            self._hold(
                arrays={ctx: array.detach() for ctx, array in self.arrays.items()},
                gradients=None,
                _grad_req=req,
            )
        else:
            self._hold_data(self.arrays, req)

    @property
    def dtype(self) -> DType:
        """The dtype. Setting it casts the arrays."""
        return self._dtype if self.joined is None else self.joined[1][0].dtype

    @dtype.setter
    def dtype(self, dtype: DType) -> None:
        self.cast(dtype)

    @property
    def shape(self) -> Shape | None:
        """The shape, or None. Unknown dimensions are 0, or -1 inside `mx.np_shape`."""
        if self._shape is None or 0 not in self._shape or not _core.is_np_shape():
            return self._shape
        return tuple(size or -1 for size in self._shape)

    @shape.setter
    def shape(self, shape: int | Sequence[int]) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        known = self._shape
        if known is not None and (
            len(known) != len(shape)
            or any(old not in (-1, 0, new) for new, old in zip(shape, known))
        ):
            raise AssertionError(
                f"Parameter '{self.name}' has shape {known}, which is incompatible with {shape}"
            )
        self._shape = shape

    def complete(self, shape: Shape) -> None:
        """Replaces the shape by one that also has the sizes that another user of the parameter
        knows."""
        self._shape = shape

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no Trainer, but it includes the contents of the gradients.
        return {
            **self.__dict__,
            **dict.fromkeys(("_trainer_reference", "_var", "_calls")),
            "gradients": None,
            "left": (),
            "contents": contents_of(self),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        contents = state.pop("contents", ())
        self.__dict__.update(state)
        if contents:
            self._hold_data(self.arrays, self._grad_req, dict(zip(self.arrays, contents)))

    def set_trainer(self, trainer: Trainer | None) -> None:
        """Sets the Trainer that updates the parameter. A parameter with row_sparse storage can
        belong to only one Trainer; a second one raises MXNetError."""
        if self.stype != "default" and trainer is not None and self._trainer not in (None, trainer):
            raise MXNetError(
                f"Parameter '{self.name}' has row_sparse storage and already belongs to a "
                "Trainer; it cannot belong to two"
            )
        self._trainer = trainer

    def replaced_error(self) -> MXNetError:
        """Returns the error for a parameter whose layer is no longer part of the network."""
        return MXNetError(
            f"Parameter '{self.name}' is no longer part of the network: {self.replaced}. "
            "Collect the parameters and create the Trainer afterwards: "
            "gluon.Trainer(net.collect_params(), ...)"
        )

    # Values

    def missing_error(self) -> MXNetError:
        """Returns the error that explains why the parameter has no arrays yet."""
        if self.replaced:
            return self.replaced_error()
        if self.deferred_init:
            return DeferredInitializationError(
                f"Parameter '{self.name}' has not been initialized yet: its shape {self._shape} "
                "is not known before the first forward pass. Run one batch through the network "
                "first, or give in_units, in_channels, input_size, ... when the layer is created"
            )
        return MXNetError(
            f"Parameter '{self.name}' has not been initialized. Call net.initialize(), and "
            "create the Trainer with net.collect_params(), which includes the parameters of "
            "children, rather than net.params"
        )

    def _choose(self, ctx):
        """Returns the device of the copy that `ctx` (a Context or None) selects."""
        contexts = self.list_ctx()
        if ctx is None:
            if len(contexts) == 1:
                return contexts[0]
            ctx = current_context()
        home = ctx if ctx in contexts else computes(ctx)
        if home not in contexts:
            raise self.elsewhere_error(ctx)
        return home

    def elsewhere_error(self, ctx: Context) -> MXNetError:
        """Returns the error for a device without a copy of the parameter."""
        return MXNetError(
            f"Parameter '{self.name}' was not initialized on context {ctx}. It was only "
            f"initialized on {self.list_ctx()}"
        )

    def data(self, ctx: Context | None = None) -> NDArray:
        """Returns the array on device `ctx`, which may be omitted if there is only one.

        Raises
        ------
        MXNetError
            If the parameter is not initialized, or not on that device. Raises
            `DeferredInitializationError` if its shape is not known yet.
        """
        self.check_dense("data")
        trace = tracing.current()
        if trace is not None:
            if self.arrays is None and not shape_is_known(self._shape):
                raise self.missing_error()
            return trace.parameter(self, self._choose(ctx))
        if self.arrays is None:
            raise self.missing_error()
        array = self.arrays.get(ctx)
        return array if array is not None else self.arrays[self._choose(ctx)]

    def list_data(self) -> list[NDArray]:
        """Returns the arrays on all devices, in the order in which the devices were given."""
        self.check_dense("list_data")
        if self.arrays is None:
            raise self.missing_error()
        return list(self.arrays.values())

    def check_dense(self, what: str) -> None:
        """Raises MXNetError if the parameter has row_sparse storage. `what` is the method to name
        in the message."""
        if self.stype != "default":
            raise MXNetError(
                f"Parameter '{self.name}': {what} returns the whole array, but its storage is "
                f"{self.stype}; use row_sparse_data(row_id) in a Block, not a HybridBlock"
            )

    def row_sparse_data(self, row_id: NDArray) -> NDArray:
        """Returns the rows in `row_id`, on the device of `row_id`, as a row_sparse array. Their
        gradients become part of the parameter's gradient.

        Parameters
        ----------
        row_id : NDArray
            Row indices, in any order and number.

        Raises
        ------
        MXNetError
            If the storage is 'default', or the parameter has no Trainer yet.
        """
        return self._rows(row_id, self._choose(row_id.context), "row_sparse_data")

    def list_row_sparse_data(self, row_id: NDArray) -> list[NDArray]:
        """Returns the result of `row_sparse_data` for each device."""
        return [self._rows(row_id, ctx, "list_row_sparse_data") for ctx in self.list_ctx()]

    def rows_on(self, row_id: NDArray, ctx: Context | None) -> NDArray:
        """Returns the result of `row_sparse_data` for a given device."""
        return self._rows(row_id, self._choose(ctx), "row_sparse_data")

    def _rows(self, row_id, ctx, what):
        if self.stype == "default":
            raise MXNetError(
                f"Parameter '{self.name}': {what} needs row_sparse storage, but its storage is "
                "'default'; use data()"
            )
        if self._trainer is None:
            raise MXNetError(
                f"Parameter '{self.name}': {what} needs the Trainer of the parameter, but none "
                "was created yet"
            )
        if self.arrays is None:
            raise self.missing_error()
        numbers = np.unique(row_id.asnumpy().astype(np.int64))
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < self._shape[0]:
            raise MXNetError(
                f"Parameter '{self.name}': row_id ranges from {numbers[0]} to {numbers[-1]}, "
                f"but there are only {self._shape[0]} rows"
            )
        array = self.arrays[ctx]
        gradient = (self.gradients or {}).get(ctx)
        if isinstance(gradient, RowSparseGradient):
            return row_sparse_part(array.plain, gradient, numbers)
        return row_sparse_part(array, None, numbers)

    def _check_grad(self):
        if self.arrays is None:
            raise self.missing_error()
        if self.gradients is None:
            raise MXNetError(
                f"Parameter '{self.name}' has no gradient because its grad_req is 'null'"
            )

    def grad(self, ctx: Context | None = None) -> NDArray:
        """Returns the gradient on device `ctx`, which may be omitted if there is only one. It is
        zero before the first backward pass.

        Raises
        ------
        MXNetError
            If the parameter is not initialized, not on that device, or its `grad_req` is 'null'.
        """
        self._check_grad()
        return self.gradients[self._choose(ctx)]

    def list_grad(self) -> list[NDArray]:
        """Returns the gradients on all devices, in the order of `list_data`."""
        self._check_grad()
        return list(self.gradients.values())

    def list_ctx(self) -> list[Context]:
        """Returns the devices on which the parameter is, or will be, initialized."""
        if self.arrays is not None:
            return list(self.arrays)
        if self.deferred_init:
            return self.deferred_init[1]
        if self.joined is not None:
            return [self.joined[0]]
        raise self.missing_error()

    def _devices(self, ctx):
        """Returns the devices of new arrays, given the argument `ctx` of a call."""
        if ctx is not None and self.placed not in (None, context_list(ctx)):
            raise ValueError(
                f"Parameter '{self.name}' is placed on {self.placed}, so omit ctx, or place the "
                f"network again; it cannot be created on {context_list(ctx)}"
            )
        return self.placed or context_list(ctx)

    def zero_grad(self) -> None:
        """Sets the gradients on all devices to zero. Does nothing without gradients."""
        traced = tracing.current() is not None  # then, writing raises an error
        for gradient in (self.gradients or {}).values() if traced else written(self):
            gradient[:] = 0

    def set_data(self, data: ArrayLike | Sequence[Any]) -> None:
        """Sets the value on all devices.

        Parameters
        ----------
        data : NDArray or array-like
            Value with the parameter's shape, on any device.

        Raises
        ------
        AssertionError
            If the shape differs.
        MXNetError
            If the parameter is not initialized.
        """
        if not isinstance(data, nd.NDArray):
            data = nd.array(data, dtype=self.dtype)
        self.shape = data.shape
        if self.arrays is None:
            if not self.deferred_init:
                raise self.missing_error()
            init, contexts, default_init, _, key = self.deferred_init
            self.deferred_init = (init, contexts, default_init, data, key)
            return
        with autograd.pause():
            at_once(*self._copies(data))

    def _copies(self, data):
        """Returns the changes (`_core.at_once`) that copy an array with the parameter's shape to
        all devices."""
        data = _dense(data).astype(self.dtype, copy=False)
        if self._trainer is not None:
            self._trainer.notice(self)
        return [(data.copyto, array) for array in self.arrays.values() if array is not data]

    def reduced(self) -> NDArray:
        """Returns the mean of the copies on all devices, in the parameter's storage type. For equal
        copies, it is bitwise equal to them."""
        mean = self._mean()
        return mean if self.stype == "default" else mean.tostype(self.stype)

    def _mean(self):
        if self.arrays is None:
            raise self.missing_error()
        with autograd.pause():
            # Quotients of integers of mx.np would be floats.
            first, *others = map(kinds.plain, self.arrays.values())
            mean = first.detach()
            if others:
                moved = [other.as_in_context(first.context) - first for other in others]
                mean = first + nd.add_n(*moved) / (len(moved) + 1)
            return kinds.of_kind(mean, self.is_numpy)

    def var(self) -> Symbol:
        """Returns the variable for this parameter in symbols. Always returns the same object."""
        if self._var is None:
            from ...symbol import var

            self._var = var(
                self.name,
                shape=self.shape,
                dtype=self.dtype,
                lr_mult=self.lr_mult,
                wd_mult=self.wd_mult,
                init=self.init,
                stype=self.stype if self.stype != "default" else None,
            )
        return self._var

    # Initialization

    def initialize(
        self,
        init: Init | None = None,
        ctx: Devices | None = None,
        default_init: Init | None = None,
        force_reinit: bool = False,
    ) -> None:
        """Creates the arrays, or defers this until the shape is known.

        Parameters
        ----------
        init : Initializer or str, optional
            Initializer that overrides the parameter's own and `default_init`.
        ctx : Context or list of Context, default the current context
            Devices; a copy is created on each. If the network was placed (`Block.place`), the
            placement is the default, and other devices raise ValueError.
        default_init : Initializer, default ``Uniform()``
            Initializer for a parameter without one of its own.
        force_reinit : bool, default False
            Whether to reinitialize a parameter that is initialized already. Otherwise, it is left
            unchanged, with a warning.

        Raises
        ------
        ValueError
            If the shape is not known and `allow_deferred_init` is False, or for other devices than
            those of the placement.
        """
        if self.arrays is not None and not force_reinit:
            warnings.warn(
                f"Parameter '{self.name}' is already initialized, ignoring. Set force_reinit=True "
                "to re-initialize.",
                stacklevel=2,
            )
            return
        if default_init is None:
            default_init = initializer.Uniform()
        contexts = self._devices(ctx)
        if init is None:
            init = default_init if self.init is None else self.init
        if not shape_is_known(self._shape) and not self._allow_deferred_init:
            raise ValueError(
                f"Cannot initialize Parameter '{self.name}' because it has invalid shape: "
                f"{self._shape}."
            )
        waiting = init, contexts, default_init, None, _reserve_random_calls()
        former = self.arrays, self.gradients, self.deferred_init
        self._hold(arrays=None, gradients=None, deferred_init=waiting, is_numpy=_core.is_np_array())
        if not shape_is_known(self._shape):
            return
        try:
            self.finish_deferred_init()
        except BaseException:
            if former[0] is not None:  # if the initialization fails, keep the former values
                self._hold(arrays=former[0], gradients=former[1], deferred_init=former[2])
            raise

    def finish_deferred_init(self) -> None:
        """Runs the deferred initialization, if there is one."""
        if not self.deferred_init:
            return
        init, contexts, default_init, value, key = self.deferred_init
        if not shape_is_known(self._shape):
            raise MXNetError(
                f"Cannot initialize Parameter '{self.name}' because it has invalid shape: "
                f"{self._shape}. Give in_units, in_channels, input_size, ... when the layer is "
                "created"
            )
        # During the forward pass of one replica, its device may wait for the next replica's device.
        # The initial values are therefore computed on a side context, which does not wait.
        self.is_numpy = self.is_numpy or _core.is_np_array()
        many = len(contexts) > 1 and autograd.is_training()
        place = side_context(contexts[0]) if many else contexts[0]
        waits = place != contexts[0]
        with autograd.pause():
            if value is None:
                value = nd.zeros(self._shape, ctx=place, dtype=self.dtype)
                value = kinds.of_kind(value, self.is_numpy)
                with place if waits else current_context(), random.calls_at(key):
                    initializer.create(default_init)(
                        initializer.InitDesc(self.name, {"__init__": init}), value
                    )
                if waits:  # use host memory, which stays alive until all devices have copied it
                    value = nd.from_numpy(brought_to_all(value).asnumpy())
                self._take(value, contexts, own=not waits)
            else:
                self._init_impl(value, contexts)

    def _take(self, value, contexts, own=True, contents=()):
        """Replaces the arrays by copies of `value`. With `own`, `value` itself becomes the copy on
        its device. `contents` maps devices to gradients; missing gradients are zero."""
        value = kinds.of_kind(value, self.is_numpy)
        data = {c: value if own and c == value.context else value.copyto(c) for c in contexts}
        if not own:
            data = {ctx: array.astype(self.dtype, copy=False) for ctx, array in data.items()}
        self._hold_data(data, self._grad_req, contents)

    def _init_impl(self, value, contexts, contents=()):
        value = _dense(value).astype(self.dtype, copy=False)
        self._take(value.copyto(contexts[0]), contexts, contents=contents)

    def _hold_data(self, data, req, contents=(), **values):
        """Replaces the arrays by `data` (arrays by device) and creates new gradients. `contents`
        maps devices to gradients; missing gradients are zero. Also sets the attributes `values`."""
        grad, contents = None, dict(contents)
        self._unbind()  # compiled programs must release the old arrays
        if self.is_numpy and (self.grad_stype, self.stype) != ("default", "default"):
            raise NotSupportedError(
                f"Parameter '{self.name}': row_sparse storage and gradients (sparse_grad=True) "
                "need arrays of mx.nd; switch mx.np off with npx.reset_np(), or use dense ones"
            )
        left, marks = left_behind(self) if contents else ((), [])
        if self.grad_stype != "default" or self.stype != "default":
            data = {ctx: _plain(array) for ctx, array in data.items()}
        if req != "null" and self.grad_stype != "default":
            grad = {
                ctx: RowSparseGradient(array.shape, ctx, array.dtype, req)
                for ctx, array in data.items()
            }
            for ctx, (content, fresh) in contents.items():
                filled(grad[ctx], ctx, content, data[ctx].dtype).mark(fresh)
            data = {ctx: RowGradientWeight(array, grad[ctx]) for ctx, array in data.items()}
        elif req != "null":
            grad = Gradients(data)
            for ctx, array in data.items():
                content, fresh = contents.get(ctx, (None, False))
                if content is None:
                    marks.append((array.attach_grad, req))
                else:
                    own = filled(None, ctx, content, array.dtype)
                    marks.append((mark_variables, [array], [own], req))
                if fresh:
                    marks.append((setattr, array, "_fresh_grad", True))
        self._hold(
            *marks,
            arrays=data,
            gradients=grad,
            _grad_req=req,
            deferred_init=(),
            left=left,
            **values,
        )

    def _check_load(self, data, ctx, cast_dtype, dtype_source, source="saved params"):
        """Raises an error if `data` is not a valid value for this parameter. Changes nothing, so a
        load can check all values first. `source` names the origin of the data in errors."""
        if cast_dtype and dtype_source not in ("current", "saved"):
            raise ValueError(f"dtype_source must be 'current' or 'saved', not {dtype_source!r}")
        failed = f"Failed loading Parameter '{self.name}' from {source}"
        if data is None:
            raise MXNetError(f"{failed}: the array is missing in the file")
        if self._shape is not None and (
            len(self._shape) != len(data.shape)
            or any(known not in (-1, 0, size) for known, size in zip(self._shape, data.shape))
        ):
            raise AssertionError(
                f"{failed}: shape incompatible expected {self._shape} vs saved {data.shape}"
            )
        if not cast_dtype and dtype_name(self.dtype) != dtype_name(data.dtype):
            raise AssertionError(
                f"{failed}: dtype incompatible expected {dtype_name(self.dtype)} vs saved "
                f"{dtype_name(data.dtype)}. Set cast_dtype=True to cast the dtype of saved params."
            )
        initialized = self.arrays is not None or self.deferred_init
        if not initialized:
            self._devices(ctx)
        elif ctx is not None and set(context_list(ctx)) != set(self.list_ctx()):
            raise AssertionError(
                f"Failed to load Parameter '{self.name}' on {context_list(ctx)} because it was "
                f"previously initialized on {self.list_ctx()}; omit ctx to keep it there, or "
                "use reset_ctx to move it"
            )

    def _load_init(self, data, ctx, cast_dtype=False, dtype_source="current"):
        """Prepares the parameter for a loaded value, and initializes it if necessary. Returns the
        changes (`_core.at_once`) that set the value; the caller must apply them."""
        self._shape = tuple(data.shape)
        differs = dtype_name(self.dtype) != dtype_name(data.dtype)
        if differs and cast_dtype and dtype_source == "saved":
            self.cast(data.dtype)
        if self.arrays is not None:
            return self._copies(data)
        self.is_numpy = self.is_numpy or _core.is_np_array()
        self._init_impl(data, self.list_ctx() if self.deferred_init else self._devices(ctx))
        return []

    def reset_ctx(self, ctx: Devices) -> None:
        """Moves the parameter to device `ctx`, or replicates it on a list of devices. Gradients are
        moved with their contents, so the next update sees the same sum.

        Raises
        ------
        ValueError
            If the parameter was never initialized.
        """
        contexts, self.placed = context_list(ctx), None
        if self.arrays is not None:
            with autograd.pause():
                contents = on_devices(contents_of(self), self.list_ctx(), contexts)
                self._init_impl(self._mean(), contexts, contents)
        elif self.deferred_init:
            init, _, default_init, value, key = self.deferred_init
            self.deferred_init = (init, contexts, default_init, value, key)
        else:
            raise ValueError(
                f"Cannot reset context for Parameter '{self.name}' because it has not been "
                "initialized."
            )

    def cast(self, dtype: DType) -> None:
        """Casts value and gradient to another dtype."""
        if self.arrays is None:
            self._dtype = dtype
            return
        with autograd.pause():
            contents = dict(zip(self.arrays, contents_of(self)))
            data = {ctx: array.astype(dtype) for ctx, array in self.arrays.items()}
            self._hold_data(data, self._grad_req, contents, _dtype=dtype)


def load_values(
    items: Iterable[tuple[str, Parameter, NDArray]],
    source: str,
    ctx: Devices,
    cast_dtype: bool,
    dtype_source: str,
) -> None:
    """Loads (name in the source, parameter, array) items. If one array is invalid for its
    parameter, loads none. Values of initialized parameters are replaced atomically."""
    for name, param, array in items:
        param._check_load(array, ctx, cast_dtype, dtype_source, f"'{name}' of {source}")
    with autograd.pause():
        at_once(
            *[
                change
                for _, param, array in items
                for change in param._load_init(array, ctx, cast_dtype, dtype_source)
            ]
        )

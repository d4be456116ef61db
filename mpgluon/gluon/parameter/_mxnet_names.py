"""Private attributes of MXNet's `Parameter`, which programs and packages use, and error messages
for PyTorch's names."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._internal.hints import PARAMETER, absent, present
from ...base import MXNetError
from ...context import Context, computes, current_context
from .._compiled import tracing
from ..utils import shape_is_known
from ._filling import Fillable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from ..._core import NDArray
    from ..trainer import Trainer


def _by_device(arrays: Sequence[NDArray] | None) -> dict[Context, NDArray] | None:
    return None if arrays is None else {array.context: array for array in arrays}


class DeviceArrays(list["NDArray"]):
    """A write-through list of a parameter's arrays or gradients, one for each device.

    ``_data[i] = array`` replaces the parameter's array on its i-th device, including its gradient.

    While a block is traced, the list holds traced arrays, and an assigned array replaces the
    parameter for the rest of the trace.
    """

    def __init__(self, parameter: MXNetNames, attribute: str) -> None:
        self._parameter = parameter
        self._attribute = attribute  # "arrays" or "gradients"
        super().__init__(self.by_device().values())

    def by_device(self) -> dict[Context, Any]:
        """Returns the parameter's current arrays or gradients, by device."""
        found = getattr(self._parameter, self._attribute)
        # While a block is traced, a known shape suffices: the arrays may not exist yet.
        return dict.fromkeys(self._parameter.list_ctx()) if found is None else found

    def _trace(self):
        return tracing.current() if self._attribute == "arrays" else None

    def __setitem__(self, index: Any, value: Any) -> None:
        contexts, before = list(self.by_device()), list(self.by_device().values())
        after = list(before)
        after[index] = value
        if len(after) != len(contexts):
            self._refuse()
        changed = {ctx: new for ctx, old, new in zip(contexts, before, after) if new is not old}
        for ctx, array in changed.items():
            if array.context != ctx:
                raise MXNetError(
                    f"Parameter '{self._parameter.name}': the array for {ctx} is on "
                    f"{array.context}; move it with as_in_context(mx.{ctx})"
                )
        trace = self._trace()
        if trace is not None:
            for ctx, array in changed.items():
                trace.replace(self._parameter, ctx, array)
            return
        super().__setitem__(slice(None), after)
        if self._attribute == "arrays" and self._parameter.stype != "default":
            after = [array.tostype("default") for array in after]
        setattr(self._parameter, self._attribute, dict(zip(contexts, after)))

    def __getitem__(self, index: Any) -> Any:
        trace = self._trace()
        if trace is None:
            return super().__getitem__(index)
        contexts = list(self.by_device())[index]
        if isinstance(contexts, list):
            return [trace.parameter(self._parameter, ctx) for ctx in contexts]
        return trace.parameter(self._parameter, contexts)

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def _refuse(self, *_args: Any, **_options: Any) -> NoReturn:
        raise MXNetError(
            f"Parameter '{self._parameter.name}': it has one array per device, so this list cannot "
            "grow, shrink or be reordered; reset_ctx changes the devices"
        )

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse  # type: ignore
    __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore


class MXNetNames(Fillable):
    """Attributes of MXNet's `Parameter` that are write-through views of its arrays. Assigning a
    list of arrays replaces the parameter's arrays; the arrays' contexts become its devices."""

    arrays: dict[Context, NDArray] | None
    gradients: Mapping[Context, NDArray] | None
    deferred_init: tuple[Any, ...]
    name: str
    shape: Any
    data: Any
    stype: str
    grad_stype: str
    _trainer_reference: weakref.ref[Trainer] | None
    overrides_data: bool = False  # True if a subclass overrides data(), which blocks must then call

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parameter: Any = next(kind for kind in cls.__mro__ if MXNetNames in kind.__bases__)
        cls.overrides_data = cls.data is not parameter.data

    def __dir__(self) -> list[str]:
        return present(self, super().__dir__())

    @property
    def _data(self) -> list[NDArray] | None:
        if self.arrays is None and (tracing.current() is None or not shape_is_known(self.shape)):
            return None
        arrays = DeviceArrays(self, "arrays")
        if self.stype != "default":
            list.__setitem__(arrays, slice(None), [one.tostype(self.stype) for one in arrays])
        return arrays

    @_data.setter
    def _data(self, arrays: Sequence[NDArray] | None) -> None:
        self.arrays = _by_device(arrays)

    @property
    def _grad(self) -> list[NDArray] | None:
        return None if self.gradients is None else DeviceArrays(self, "gradients")

    @_grad.setter
    def _grad(self, arrays: Sequence[NDArray] | None) -> None:
        self.gradients = _by_device(arrays)

    @property
    def _ctx_list(self) -> list[Context] | None:
        return None if self.arrays is None else list(self.arrays)

    @_ctx_list.setter
    def _ctx_list(self, contexts: Sequence[Context] | None) -> None:
        self._check_devices(contexts)

    @property
    def _ctx_map(self) -> list[list[int | None]] | None:
        """Maps devices to positions in `_ctx_list`: the first list is indexed by GPU number, the
        second by CPU number."""
        if self.arrays is None:
            return None
        places: list[list[int | None]] = [[], []]
        for place, ctx in enumerate(self.arrays):
            of_type = places[ctx.device_typeid & 1]
            of_type += [None] * (ctx.device_id + 1 - len(of_type))
            of_type[ctx.device_id] = place
        return places

    @_ctx_map.setter
    def _ctx_map(self, places: Sequence[Sequence[int | None]] | None) -> None:
        self._check_devices(
            None if places is None else [place for of_type in places for place in of_type]
        )

    def _check_devices(self, places: Sequence[Any] | None) -> None:
        """Raises AttributeError if an assigned list of devices has the wrong length. A list of the
        right length is ignored, because the arrays determine the devices."""
        count = None if places is None else sum(place is not None for place in places)
        if count != (None if self.arrays is None else len(self.arrays)):
            raise AttributeError(
                f"Parameter '{self.name}': its devices are given by its arrays; set _data first"
            )

    @property
    def _deferred_init(self) -> tuple[Any, ...]:
        return self.deferred_init

    @_deferred_init.setter
    def _deferred_init(self, values: tuple[Any, ...]) -> None:
        self.deferred_init = values

    @property
    def _stype(self) -> str:
        return self.stype

    @_stype.setter
    def _stype(self, stype: str) -> None:
        self.stype = stype

    @property
    def _grad_stype(self) -> str:
        return self.grad_stype

    @_grad_stype.setter
    def _grad_stype(self, stype: str) -> None:
        self.grad_stype = stype

    @property
    def _trainer(self) -> Trainer | None:
        """The Trainer that updates the parameter. The reference is weak because the Trainer owns
        the parameter."""
        return None if self._trainer_reference is None else self._trainer_reference()

    @_trainer.setter
    def _trainer(self, trainer: Trainer | None) -> None:
        self._trainer_reference = None if trainer is None else weakref.ref(trainer)

    def _set_trainer(self, trainer: Trainer | None) -> None:
        self.set_trainer(trainer)

    def _finish_deferred_init(self) -> None:
        self.finish_deferred_init()

    def _reduce(self) -> NDArray:
        return self.reduced()

    def _check_and_get(self, arr_list: Sequence[NDArray] | None, ctx: Any) -> Any:
        """Returns the array on device `ctx`, or all arrays for ``ctx=list``."""
        if arr_list is None:
            raise self.missing_error()
        if ctx is list:
            return list(arr_list)
        if ctx is None and len(arr_list) == 1:
            return arr_list[0]
        ctx = current_context() if ctx is None else ctx
        by_device = isinstance(arr_list, DeviceArrays)
        contexts = list(arr_list.by_device()) if by_device else [a.context for a in arr_list]
        for place, home in enumerate(contexts):
            if home in (ctx, computes(ctx)):
                return arr_list[place]
        raise self.elsewhere_error(ctx)

    def _get_row_sparse(self, arr_list: Any, ctx: Any, row_id: NDArray) -> Any:
        if not isinstance(row_id, nd.NDArray):
            raise TypeError(
                f"Parameter '{self.name}': row_id must be an NDArray, not {type(row_id).__name__}"
            )
        return self.list_row_sparse_data(row_id) if ctx is list else self.rows_on(row_id, ctx)


absent(MXNetNames, PARAMETER)

"""`ParameterDict`: parameters by name."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import initializer, ndarray as nd
from ..._internal.hints import near
from ...base import MXNetIOError
from .._tree import devices_of_groups
from .._whole_parameters import divided_names, with_parts, with_wholes
from ..utils import brief, indent
from ._constant import Constant
from ._matching import match_attributes
from ._parameter import OWNED_BY_BLOCKS, OWNED_BY_DICT, UNOWNED, Parameter, load_values

if TYPE_CHECKING:
    import weakref
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView

    from ..._internal.types import ArrayLike, Devices, Init, NDArray
    from ...context import Context


class ParameterDict:
    """A dict of parameters by name.

    Parameters
    ----------
    prefix : str, default ''
        Prefix for the names of parameters that `get` creates.
    shared : ParameterDict, optional
        Dict that `get` searches before it creates a parameter.

    Examples
    --------
    >>> params = gluon.ParameterDict("net_")
    >>> params.get("weight", shape=(2,))
    Parameter net_weight (shape=(2,), dtype=<class 'numpy.float32'>)
    >>> list(params.keys())
    ['net_weight']
    """

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None) -> None:
        self._prefix = prefix
        self._params = {}
        self._shared = shared
        self.collected_from: weakref.ref[Any] | None = None  # block that collected the dict

    def __repr__(self) -> str:
        name = self._prefix + " " if self._prefix else ""
        content = "\n".join(indent(f"  {param!r}", 2) for param in self.values())
        return f"{name}(\n{content}\n)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "collected_from": None}

    def __getitem__(self, name: str) -> Parameter:
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def __contains__(self, name: str) -> bool:
        return name in self._params

    def items(self) -> ItemsView[str, Parameter]:
        """Returns a view of the (name, Parameter) pairs in the order of their creation, like
        ``dict.items``."""
        return self._params.items()

    def keys(self) -> KeysView[str]:
        """Returns a view of the names in the order of their creation, like ``dict.keys``."""
        return self._params.keys()

    def values(self) -> ValuesView[Parameter]:
        """Returns a view of the parameters in the order of their creation, like ``dict.values``."""
        return self._params.values()

    @property
    def prefix(self) -> str:
        """The prefix of the names of parameters that `get` creates."""
        return self._prefix

    def of_child(self, prefix: str) -> ParameterDict:
        """Returns an empty dict for a child. It has this dict's prefix followed by `prefix`, and
        uses the same shared dict."""
        return ParameterDict(self._prefix + prefix, self._shared)

    def _find(self, name):
        param = self._params.get(name)
        if param is None and self._shared is not None:
            param = self._shared._find(name)
            if param is not None:
                self._params[name] = param
        return param

    def get(self, name: str, **kwargs: Any) -> Parameter:
        """Returns the parameter called ``prefix + name``. Searches this dict, then the shared dict,
        and creates ``Parameter(prefix + name, **kwargs)`` if neither has it.

        The keyword arguments must match an existing parameter; unknown dimensions of its shape are
        filled in.

        Raises
        ------
        AssertionError
            If the parameter exists with other attributes.
        """
        name = self._prefix + name
        param = self._find(name)
        if param is None:
            param = self._params[name] = Parameter(name, **kwargs)
            param.owner = OWNED_BY_DICT
            return param
        match_attributes(param, kwargs)
        return param

    def get_constant(self, name: str, value: ArrayLike | Sequence[Any] | None = None) -> Constant:
        """Returns the constant called ``prefix + name``, created from `value` if it does not exist
        yet."""
        name = self._prefix + name
        param = self._find(name)
        if param is None:
            if value is None:
                raise KeyError(f"No constant named '{name}'. Give a value to make a new one.")
            param = self._params[name] = Constant(name, value)
            param.owner = OWNED_BY_DICT
        elif value is not None:
            if not isinstance(param, Constant):
                raise AssertionError(f"Parameter '{name}' already exists but it is not a constant.")
            value = value.asnumpy() if isinstance(value, nd.NDArray) else np.asarray(value)
            if param.shape != value.shape or not (param.value.asnumpy() == value).all():
                raise AssertionError(
                    f"Constant '{name}' already exists but its value is another one."
                )
        return param

    def update(self, other: ParameterDict | Mapping[str, Parameter]) -> None:
        """Adds all parameters of `other`. Parameters with the same name must be the same object.

        Raises
        ------
        AssertionError
            If this dict already has a different parameter with one of the names.
        """
        for name, param in other.items():
            if self._params.get(name, param) is not param:
                raise AssertionError(
                    "Cannot update self with other because they have different Parameters with "
                    f"the same name '{name}'"
                )
        for param in other.values():
            if param.owner == UNOWNED:
                param.owner = OWNED_BY_DICT
        self._params.update(other.items())

    def replace(self, former: Parameter, others: Sequence[Parameter]) -> None:
        """Replaces a parameter by others, which take its position."""
        added = {param.name: param for param in others}
        items: dict[str, Parameter] = {}
        for name, param in self._params.items():
            items.update(added if param is former else {} if name in added else {name: param})
        self._params = {**items, **added}

    def restore(self, items: dict[str, Parameter]) -> None:
        """Sets the parameters of the dict to earlier ones."""
        self._params = items

    def adopt(self, param: Parameter, attribute: str, former: Parameter | None = None) -> None:
        """Adds a parameter that was created without a ParameterDict and became an attribute of a
        block. The first dict that adopts it adds its prefix to the parameter's name, which is the
        name of the attribute if the parameter was created without a name. A parameter
        that `get` created belongs only to its dict and is ignored, unless it replaces `former`.

        Raises
        ------
        AssertionError
            If a different parameter of this dict has the name, or if the shape or dtype of `former`
            is another one.
        """
        if former is not None and former is not param:
            try:
                match_attributes(param, {"shape": former.shape, "dtype": former.dtype})
            except AssertionError:
                raise AssertionError(
                    f"{former!r} cannot be replaced by {param!r}: shape and dtype must match"
                ) from None
        kept = {key: one for key, one in self._params.items() if one is not former}
        if param.owner == OWNED_BY_DICT:
            if former is not None:
                self._params = {**kept, param.name: param}
            return
        name = param.name if param.named else attribute
        new = param.owner == UNOWNED and not (param.named and name.startswith(self._prefix))
        name = self._prefix + name if new else name
        if kept.get(name, param) is not param:
            raise AssertionError(
                f"Parameter '{name}' already exists in the block with prefix '{self._prefix}'; "
                "give the parameters of a block different names"
            )
        self._params = {**kept, name: param}
        if new or not param.named:
            param.name, param.named = name, True
        param.owner = OWNED_BY_BLOCKS

    def initialize(
        self,
        init: Init | None = None,
        ctx: Devices | None = None,
        verbose: bool = False,
        force_reinit: bool = False,
    ) -> None:
        """Initializes all parameters.

        Parameters
        ----------
        init : Initializer, default ``Uniform()``
            Initializer for parameters without one of their own.
        ctx : Context or list of Context, default the current context
            Devices of the parameters; a list creates a copy on each device.
        verbose : bool, default False
            Whether the initializer logs its actions.
        force_reinit : bool, default False
            Whether to reinitialize parameters that are initialized already.
        """
        init = initializer.Uniform() if init is None else initializer.create(init)
        if verbose:
            init.set_verbosity(verbose=verbose)
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit=force_reinit)

    def zero_grad(self) -> None:
        """Sets all gradients to zero."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx: Devices) -> None:
        """Moves all parameters to `ctx`, a Context or list of Context. Layers of a placed network
        then compute on the devices of their parameters."""
        for param in self.values():
            param.reset_ctx(ctx)
        block = None if self.collected_from is None else self.collected_from()
        if block is not None and devices_of_groups(block) is not None:
            from ...parallel._placing import follow_parameters

            follow_parameters(block)

    def list_ctx(self) -> list[Context]:
        """Returns the devices of all parameters, in the order of first occurrence."""
        return list(dict.fromkeys(ctx for param in self.values() for ctx in param.list_ctx()))

    def setattr(self, name: str, value: Any) -> None:
        """Sets an attribute of all parameters, as in ``params.setattr('grad_req', 'null')``. Warns
        if parameters lack the attribute but have one with a similar name."""
        first = next(iter(self.values()), None)
        known = not self or any(hasattr(param, name) for param in self.values())
        guess = "" if known else near(name, [key for key in dir(first) if key[0] != "_"])
        if guess:
            warnings.warn(f"setattr: parameters have no attribute {name!r}{guess}", stacklevel=2)
        for param in self.values():
            setattr(param, name, value)

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Writes all values to a ``.params`` file under the parameters' names, from which
        `strip_prefix` is removed. Parameters that `parallel.Mesh.partition` has divided are written
        whole, if all parts are in the dict."""
        divided = divided_names(self._params)
        parts = {name for names, _ in divided.values() for name in names}
        for name in (*(p.name for k, p in self.items() if k not in parts), *divided):
            if not name.startswith(strip_prefix):
                raise ValueError(
                    f"Prefix '{strip_prefix}' is to be stripped before saving, but the name of "
                    f"Parameter '{name}' does not start with it. The block may share "
                    "parameters of other blocks, or create children outside name_scope()"
                )
        arrays = {key if key in parts else p.name: p.reduced() for key, p in self.items()}
        arrays = with_wholes(divided, arrays)
        nd.save(filename, {name[len(strip_prefix) :]: array for name, array in arrays.items()})

    def load(
        self,
        filename: str | os.PathLike[str],
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Reads values from a ``.params`` file; see `load_dict`."""
        self.load_dict(
            nd.load(filename),
            ctx,
            allow_missing,
            ignore_extra,
            restore_prefix,
            filename,
            cast_dtype,
            dtype_source,
        )

    def load_dict(
        self,
        param_dict: Mapping[str, NDArray],
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        filename: str | os.PathLike[str] | None = None,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Loads values from a dict of arrays by name.

        Parameters
        ----------
        param_dict : dict of str to NDArray
            Arrays by name; the prefixes ``arg:`` and ``aux:`` are removed.
        ctx : Context or list of Context, optional
            Devices for parameters that are not initialized yet.
        allow_missing : bool, default False
            Whether parameters that are missing from the dict keep their values.
        ignore_extra : bool, default False
            Whether to ignore arrays that belong to no parameter.
        restore_prefix : str, default ''
            Prefix to add to the dict's names.
        cast_dtype : bool, default False
            Whether dtypes may differ; `dtype_source` ('current' or 'saved') then selects the dtype.
        filename : str, optional
            Origin of the values, for error messages.
        dtype_source : {'current', 'saved'}, default 'current'
            With `cast_dtype`, the dtype to use if they differ: the parameter's ('current') or the
            array's ('saved').

        Raises
        ------
        AssertionError
            If names are missing or unexpected, or a shape or dtype differs. Nothing changes in this
            case.
        """
        source = f"file '{filename}'" if filename else "param_dict"
        for name in self.keys():
            if not name.startswith(restore_prefix):
                raise AssertionError(
                    f"restore_prefix is '{restore_prefix}' but the Parameter name '{name}' does "
                    "not start with it"
                )
        if not isinstance(param_dict, dict) and not param_dict:
            param_dict = {}  # an empty file
        if not isinstance(param_dict, dict):
            raise ValueError(
                f"{source} holds arrays without names, so they cannot be assigned to parameters"
            )
        arrays = {
            restore_prefix + (name[4:] if name.startswith(("arg:", "aux:")) else name): array
            for name, array in param_dict.items()
        }
        arrays = with_parts(divided_names(self._params), arrays, source)
        check_names(self._params, arrays, source, allow_missing, ignore_extra, len(restore_prefix))
        load_values(
            [
                (name[len(restore_prefix) :], self._params[name], array)
                for name, array in arrays.items()
                if name in self._params
            ],
            source,
            ctx,
            cast_dtype,
            dtype_source,
        )


def check_names(
    params, arrays, source, allow_missing: bool, ignore_extra, skip: int = 0, extra=AssertionError
):
    """Raises AssertionError if parameters lack arrays, and an error of class `extra` if arrays
    belong to no parameter. Changes nothing, so that a load is all or nothing."""
    _check_packed(params, arrays, source, allow_missing)
    if not allow_missing:
        for name in params:
            if name not in arrays:
                advice = split_advice(name, *arrays)
                raise AssertionError(
                    f"Parameter '{name[skip:]}' is missing in {source}, which contains parameters: "
                    f"{brief(arrays)}. "
                    f"{advice or 'Set allow_missing=True to ignore missing parameters.'}"
                )
    if not ignore_extra:
        for name in arrays:
            if name not in params:
                raise extra(
                    f"Parameter '{name[skip:]}' loaded from {source} is not present in the Block's "
                    f"ParameterDict, which contains parameters: {brief(params)}. Set "
                    "ignore_extra=True to ignore."
                )


def _check_packed(params, arrays, source, allow_missing):
    """Raises AssertionError if only the file or only the network has a weight in few bits, or if
    the numbers of bits differ."""
    advice = (
        "create the network with from_pretrained(folder, quantize=...), or call "
        "mx.contrib.quantization.quantize_weights, with the options of the saved network"
    )
    for name in (*arrays, *params):
        if name.rpartition(".")[2] != "packed":
            continue
        weight = f"{name.removesuffix('packed')}weight"
        if not allow_missing and name not in params and weight in params:
            raise AssertionError(
                f"Parameter '{weight}' is missing in {source}, which holds it in few bits "
                f"('{name}'); {advice}"
            )
        if not allow_missing and name not in arrays and weight in arrays:
            raise AssertionError(
                f"Parameter '{name}' is missing in {source}, which holds the floats '{weight}'; "
                "load it before quantize_weights, or use from_pretrained(folder, quantize=...)"
            )
        if name in params and name in arrays and params[name].shape != arrays[name].shape:
            raise AssertionError(
                f"Failed loading Parameter '{name}' from {source}: shape incompatible expected "
                f"{params[name].shape} vs saved {arrays[name].shape}, since their formats differ; "
                f"{advice}"
            )


def loaded_file(filename: Any) -> Any:
    """Returns the contents of a file of `save_parameters`."""
    if isinstance(filename, (str, os.PathLike)) and os.path.isdir(filename):
        raise MXNetIOError(
            f"load_parameters: '{os.fspath(filename)}' is a folder; give the path of a file, or "
            "format='huggingface' for a folder of safetensors files"
        )
    return nd.load(filename)


def name_of_whole(name: str) -> str:
    """Removes the part number, such as ``shard1_``, from the name of a part of a split
    parameter."""
    return re.sub(r"(?<![^._])shard\d+_", "", name)


def split_advice(*names: str) -> str:
    """Returns advice for an error about differing names if some names belong to parts of split
    parameters. Returns an empty string otherwise."""
    if all(name_of_whole(name) == name for name in names):
        return ""
    return (
        "Layers are split over devices in the network or in the file, and their parts have names "
        "of their own: load the file before splitting (Mesh.place, mx.parallel.shard), or use "
        "mx.parallel.save and mx.parallel.load. Files of a network that Mesh.partition has divided "
        "fit if the names of the whole parameters are equal; save_parameters does not need names"
    )


def _name_in(name_map, name):
    """Translates a name with a dict whose keys are names or regular expressions."""
    if name in name_map:
        return name_map[name]
    for pattern, new in name_map.items():
        try:
            match = re.fullmatch(pattern, name)
            if match:
                return match.expand(new) if isinstance(new, str) else new
        except re.error as error:
            raise ValueError(
                f"name_map: {pattern!r}: {new!r} is not a regular expression and its "
                f"replacement: {error}"
            ) from error
    return name


def renamed(arrays: Mapping[str, NDArray], name_map: Any, source: str) -> dict[str, NDArray]:
    """Returns the arrays of a file with the names given by a `name_map` (see
    `Block.load_parameters`)."""
    if not callable(name_map) and not isinstance(name_map, dict):
        raise TypeError(
            "name_map must be a dict of names or patterns to names, or a function of a name, "
            f"not {type(name_map).__name__}"
        )
    found: dict[str, NDArray] = {}
    origins: dict[str, str] = {}
    for name, array in arrays.items():
        new = name_map(name) if callable(name_map) else _name_in(name_map, name)
        if new is not None and not isinstance(new, str):
            raise TypeError(f"name_map: returned {new!r} for '{name}', which is not a name")
        if new is None:
            continue
        if new in found:
            raise ValueError(
                f"name_map: both '{origins[new]}' and '{name}' of {source} become '{new}'"
            )
        found[new], origins[new] = array, name
    return found


def find_parameter(params: ParameterDict, name: str) -> Parameter | None:
    """Returns the parameter with this full name, in this dict or in the shared dict, or None."""
    return params._find(name)


def discard_parameter(params: ParameterDict, name: str) -> None:
    """Removes the parameter with this full name from the dict, if it has one."""
    params._params.pop(name, None)


def translated(name_map: Any, name: str) -> Any:
    """Translates a name with a `name_map` (see `Block.load_parameters`), or None."""
    if name_map is None:
        return name
    return name_map(name) if callable(name_map) else _name_in(name_map, name)

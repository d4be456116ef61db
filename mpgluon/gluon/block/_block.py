"""`Block`: a layer or model that computes with Python code on arrays."""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from ... import _core, ndarray as nd
from ..._internal import kinds
from ..._internal.device_groups import group as running_group, running as groups_running
from ..._internal.hints import BLOCK, absent, absent_before_init, present, unknown_option
from ...base import MXNetError
from ...context import Context
from ...name import NameManager, Prefix
from .._block_path import add_path, is_call, scope_of
from .._compiled import grouped
from .._compiled.programs import CompiledPrograms
from .._compiled.structure import KINDS
from .._nested import is_symbolic
from .._tree import (
    Parts,
    TreeNode,
    children,
    compiled_call,
    huggingface_of,
    is_hybridized,
    structure_changes,
)
from .._whole_parameters import divided_names, divided_paths, with_parts, with_wholes
from ..parameter._parameter import Parameter, load_values
from ..parameter._parameter_dict import ParameterDict, check_names, loaded_file, renamed
from ..utils import HookHandle, brief, indent
from ._casting import cast_arrays, casting
from ._replacing import replace, replace_at
from ._structure_file import save_structure, structure_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Never, Self

    from ..._internal.types import Devices, DType, Init, NDArray
    from ...contrib.huggingface import Entry


_PARTS = {"_children", "_reg_params"}
_BLOCK_HINT = " Assign a Block, such as nn.HybridLambda(function)."
# Attributes on which traces depend. A change is counted (`_compiled.structure`).
_NOTED = _PARTS | {"_ctx_group", "_group2ctx", "_flags", "_adapters", "_partitioning"}


class _NameScope(_core.Scope):
    """The ``with block.name_scope():`` of one block, which prefixes the names of new blocks."""

    _current = threading.local()

    def __init__(self, block):
        self._block = block

    @staticmethod
    def create(prefix, params, hint):
        """Returns the prefix and the parameter dict for a new block."""
        scope = getattr(_NameScope._current, "value", None)
        shared = params
        if scope is None:
            if prefix is None:
                prefix = NameManager.current().get(None, hint) + "_"
            params = (
                ParameterDict(prefix) if shared is None else ParameterDict(shared.prefix, shared)
            )
            return prefix, params
        if prefix is None:
            counts = scope._block._child_counts
            count = counts.get(hint, 0)
            counts[hint] = count + 1
            prefix = f"{hint}{count}_"
        if shared is None:
            params = scope._block.params.of_child(prefix)
        else:
            params = ParameterDict(shared.prefix, shared)
        return scope._block.prefix + prefix, params

    def _changes(self):
        if self._block._empty_prefix:
            return []
        return [(vars(_NameScope._current), "value", self), Prefix(self._block.prefix)]


def overridable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a method that subclasses override with any arguments, so that type checkers accept
    the override."""
    return method


def _hides_block(value, known):
    """True if nested lists and dicts hold a block that is not in `known`."""
    if isinstance(value, (list, tuple)):
        return any(_hides_block(item, known) for item in value)
    if isinstance(value, dict):
        return any(_hides_block(item, known) for item in value.values())
    return isinstance(value, Block) and not any(value is child for child in known)


class Block(TreeNode):
    """The base of layers and models whose computation is Python code on arrays.

    Children and parameters assigned as attributes are registered, and `collect_params` finds them::

        class Model(gluon.Block):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                with self.name_scope():
                    self.hidden = nn.Dense(20)
                    self.output = nn.Dense(10)

            def forward(self, x):
                return self.output(mx.nd.relu(self.hidden(x)))

    Parameters
    ----------
    prefix : str, optional
        Prefix for the names of parameters and of children created in `name_scope`; by default
        derived from the class name.
    params : ParameterDict, optional
        Parameters to share: ``nn.Dense(20, params=other.params)`` has the weights of `other`.

    Examples
    --------
    >>> class Twice(gluon.Block):
    ...     def forward(self, x):
    ...         return 2 * x
    ...
    >>> Twice()(nd.ones(3)).asnumpy().tolist()
    [2.0, 2.0, 2.0]
    """

    def __init__(
        self, prefix: str | None = None, params: ParameterDict | None = None, **kwargs: Never
    ) -> None:
        if kwargs:
            raise unknown_option(type(self), kwargs)
        self._empty_prefix = prefix == ""
        self._prefix, self._params = _NameScope.create(prefix, params, self._alias())
        self._name = self._prefix[:-1] if self._prefix.endswith("_") else self._prefix
        self._child_counts = {}  # class name -> number of blocks created in `name_scope`
        TreeNode.__init__(self)
        self._scope_ids = {}  # scope of the calling block -> scope of this block

    def __repr__(self) -> str:
        lines: list[str] = []
        self._add_lines(lines, "", 0)
        return "\n".join(lines)

    def _shown(self):
        """Returns (name, block) for each block that repr shows."""
        return [(name, value) for name, value in self.__dict__.items() if isinstance(value, Block)]

    def _add_lines(self, lines, head, depth):
        """Appends the lines of repr, each indented according to the depth of its block."""
        margin = "  " * depth
        lines.append(f"{margin}{head}{type(self).__name__}(")
        shown = self._shown()
        if not shown:
            lines.append("")
        for name, block in shown:
            if type(block).__repr__ is Block.__repr__:
                block._add_lines(lines, f"({name}): ", depth + 1)
            else:
                text = indent(repr(block), 2 * (depth + 1))
                lines.append(f"{margin}  ({name}): {text}")
        lines.append(f"{margin})")

    def _repr_html_(self) -> str:
        from ._summary import html_of

        return html_of(self)

    def __dir__(self) -> list[str]:
        return present(self, super().__dir__())

    def __setattr__(self, name: str, value: Any) -> None:
        existing = self.__dict__.get(name)
        if isinstance(existing, (Parameter, Block)):
            kind = Block if isinstance(existing, Block) else type(existing)
            if not isinstance(value, kind):
                raise TypeError(
                    f"Changing attribute type for {name} from {type(existing)} to {type(value)} is "
                    "not allowed." + _BLOCK_HINT * (kind is Block)
                )
        if isinstance(value, Block):
            former = self._children.get(name)
            if former is not None and former is not value:
                replace(self, name, former, value)
            else:
                self.register_child(value, name)
        elif isinstance(value, Parameter):
            former = self._reg_params.get(name)
            kept = [p for key, p in self._reg_params.items() if key != name]
            self.params.adopt(value, name, None if former in kept else former)
            self._reg_params[name] = value
        elif name in _NOTED or isinstance(existing, KINDS) is not isinstance(value, KINDS):
            structure_changes.note()
            if name in _PARTS and not isinstance(value, Parts):
                value = Parts(value)
        super().__setattr__(name, value)

    def _alias(self):
        return type(self).__name__.lower()

    @property
    def prefix(self) -> str:
        """The prefix of the names of this block's parameters and children."""
        return self._prefix

    @property
    def name(self) -> str:
        """The name of the block: its prefix without the underscore at the end."""
        return self._name

    @property
    def params(self) -> ParameterDict:
        """The block's own parameters, without its children's."""
        return self._params

    def name_scope(self) -> AbstractContextManager[Any]:
        """Returns a context manager. The names of blocks created inside it start with this block's
        prefix."""
        return _NameScope(self)

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Adds a child under `name`, or by default under its index."""
        self._children[str(len(self._children)) if name is None else name] = block

    def replace_child(self, name: str, block: Block) -> Block:
        """Replaces a descendant. ``net.query = block`` replaces a child in the same way.

        Only this occurrence of the old block is replaced; other blocks that also contain it keep
        it. If the network was placed, the new block's parameters move to the old block's devices.
        They keep their names. A Trainer must be created after the replacement, because an existing
        one holds the old parameters. Hooks stay at the old block. Hybridized networks are traced
        again in the next call.

        Parameters
        ----------
        name : str
            Path of the descendant, such as ``'layers.0.query'``.
        block : Block
            The new block, which may contain the old one. Children of a HybridBlock must be
            HybridBlocks.

        Returns
        -------
        Block
            The old block.

        Raises
        ------
        ValueError
            If the path names no descendant, if a HybridBlock would get a child that is none, or if
            the new block contains the block that would contain it.

        Examples
        --------
        >>> net = nn.HybridSequential()
        >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
        >>> net.replace_child('1', nn.Dense(3, in_units=8))
        Dense(8 -> 2, linear)
        >>> net[1]
        Dense(8 -> 3, linear)
        """
        if not isinstance(block, Block):
            raise TypeError(
                f"replace_child: expected a Block for {name!r}, got {type(block).__name__}."
                f"{_BLOCK_HINT}"
            )
        return replace_at(self, name, block)

    def register_forward_hook(
        self, hook: Callable[[Block, tuple[Any, ...], Any], Any]
    ) -> HookHandle:
        """Calls ``hook(block, inputs, output)`` after every forward. Returns a handle with
        `detach`."""
        return HookHandle(self._forward_hooks, hook)

    def register_forward_pre_hook(
        self, hook: Callable[[Block, tuple[Any, ...]], Any]
    ) -> HookHandle:
        """Calls ``hook(block, inputs)`` before every forward. Returns a handle with `detach`."""
        return HookHandle(self._forward_pre_hooks, hook)

    def register_op_hook(
        self, callback: Callable[[str, str, nd.NDArray], Any], monitor_all: bool = False
    ) -> None:
        """Calls ``callback(name, op, array)`` with the result of each op that HybridBlocks among
        the descendants call through ``F``, and with the ops' inputs if `monitor_all`. These blocks
        are no longer compiled."""
        for child in self._children.values():
            child.register_op_hook(callback, monitor_all)

    def apply(self, fn: Callable[[Block], Any]) -> Self:
        """Calls `fn` on every descendant, children first, then on the block itself. Returns the
        block."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    # Parameters

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Returns the parameters of the block and its descendants.

        Parameters
        ----------
        select : str, optional
            A regular expression that matches names from their beginning, such as
            ``'.*weight|.*bias'``.

        Returns
        -------
        ParameterDict
        """
        self._warn_of_hidden_children()
        collected = ParameterDict(self._params.prefix)
        collected.collected_from = weakref.ref(self)
        if select is None or select == "":
            collected.update(self.params)
        else:
            pattern = re.compile(select)
            collected.update(
                {name: param for name, param in self.params.items() if pattern.match(name)}
            )
        for child in self._children.values():
            collected.update(child.collect_params(select))
        return collected

    def _warn_of_hidden_children(self):
        for name, value in self.__dict__.items():
            if (
                isinstance(value, (list, tuple, dict))
                and name != "_children"
                and _hides_block(value, self._children.values())
            ):
                warnings.warn(
                    f"'{type(self).__name__}.{name}' is an unregistered container with Blocks, "
                    "whose parameters are not found. Register them with register_child(), or use "
                    "nn.Sequential or nn.HybridSequential.",
                    stacklevel=3,
                )

    def initialize(
        self,
        init: Init | None = None,
        ctx: Devices | None = None,
        verbose: bool = False,
        force_reinit: bool = False,
        group2ctx: Mapping[str, Context] | None = None,
    ) -> None:
        """Initializes the parameters of the block and its descendants.

        Parameters
        ----------
        init : Initializer or str, default ``Uniform()``
            Initializer for parameters without one of their own.
        ctx : Context or list of Context, default the current context
            Devices of the parameters; a list creates a copy on each device. Children can be placed
            on other devices by calling ``child.initialize(ctx=...)``.
        verbose : bool, default False
            Whether the initializer logs its actions.
        force_reinit : bool, default False
            Whether to reinitialize parameters that are initialized already.
        group2ctx : dict of str to Context, optional
            The devices of the groups of ``mx.AttrScope(ctx_group=...)``. Children that are created
            or called in a group's scope, and ops called in it, run on the group's device. Arrays
            are moved between groups automatically. `ctx` is then the device of everything outside
            the groups.
        """
        if group2ctx is not None:
            grouped.initialize(self, init, ctx, verbose, force_reinit, group2ctx)
        elif grouped.replicated(self):
            grouped.initialize_replicas(self, init, ctx, verbose, force_reinit)
        else:
            self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def place(self, where: Any, *args: Any, verbose: bool = True, **options: Any) -> Self:
        """Places the block on devices and prints the placement.

        Each block and its children compute on the block's device, and its inputs are moved there.
        The block's code does not change. Before `initialize`, the placement determines the devices
        on which parameters are initialized. After it, the parameters' values are moved at once, and
        optimizer states in the next step. A new placement replaces the old one.

        Parameters
        ----------
        where : dict of str to Context or its text, list of Context, Context, Mesh or Plan
            A dict maps blocks to devices, as `Plan.placement` does. A key is a block's path such as
            ``'features.0'``, its name, or a regular expression that matches a whole path or name;
            ``''`` is the block itself. The first matching entry wins, and an entry for an inner
            block overrides an entry for an outer block. A block without an entry runs on the device
            of its parameters, or of its first input if it has no parameters. A list divides the
            layers by their bytes, see `parallel.divide`. A Context places the whole block. For a
            `Mesh` or `Plan`, this method calls ``where.place(block, ...)``.
        verbose : bool, default True
            Whether to print the placement; if devices of several ranks are used, only rank 0
            prints.
        args, options
            Arguments for `Mesh.place`.

        Returns
        -------
        Block
            This block.

        Raises
        ------
        ValueError, TypeError
            If an entry matches no block, or is invalid.
        MXNetError
            If a device does not exist, if blocks belong to device groups of their own, or if the
            block is part of a network that a `Mesh` has placed.
        KeyError
            If the text of a device is invalid.

        Examples
        --------
        >>> net = nn.HybridSequential(prefix="net_")
        >>> net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
        >>> net.initialize()
        >>> net = net.place({"0": mx.cpu(0), "1": mx.cpu(1)})
        HybridSequential 'net':
          cpu(0): 0 (2 parameters, 160 B)
          cpu(1): 1 (2 parameters, 72 B)
          arrays move before 1, from cpu(0) to cpu(1)
          moved: 2 parameters, 72 B
        >>> net(nd.ones((1, 4))).context
        cpu(1)
        """
        from ...parallel._placing import all_devices, as_dict, described, place, says_where

        before = all_devices(self)
        if hasattr(where, "place"):
            where.place(self, *args, **options)
        else:
            where = as_dict(self, where)
            if args or options:
                raise TypeError("place: no other arguments can be given; they belong to a Mesh")
            place(self, where)
        if verbose and says_where(self):
            print(described(self, before))
        return self

    def zero_grad(self) -> None:
        """Sets the gradients of all parameters to zero."""
        self.collect_params().zero_grad()

    def reset_ctx(self, ctx: Devices) -> None:
        """Moves all parameters to `ctx`, a Context or list of Context. Layers of a placed network
        then compute on the devices of their parameters."""
        self.collect_params().reset_ctx(ctx)

    def cast(self, dtype: DType) -> None:
        """Casts the parameters of the block and its descendants.

        If `dtype` is a floating-point type, floating-point arrays in attributes (``self.mask``, or
        lists, tuples and dicts of arrays) are cast as well, and integer constants keep their dtype.
        A block whose arrays must keep their dtype overrides this method. Arrays that the forward
        pass creates need ``dtype=x.dtype``.
        """
        with casting():
            for child in self._children.values():
                child.cast(dtype)
            for param in self.params.values():
                param.cast(dtype)
            cast_arrays(self, dtype)

    def save(self, prefix: str) -> None:
        """Writes ``prefix-model.json``, the tree of blocks, and ``prefix-model.params``, the
        parameters, for `load`."""
        save_structure(self, f"{prefix}-model.json")
        self.save_parameters(f"{prefix}-model.params")

    def load(self, prefix: str) -> None:
        """Reads the files of `save` into a network of the same blocks in the same order: child
        names, hybridization, and parameters. Raises ValueError if the network differs."""
        with structure_of(f"{prefix}-model.json", self):
            self.load_parameters(f"{prefix}-model.params")

    def save_parameters(
        self,
        filename: str | os.PathLike[str],
        deduplicate: bool = False,
        format: str | None = None,
        shard_bytes: float | str = 5e9,
        name_map: Sequence[Entry] | None = None,
    ) -> None:
        """Writes the parameters into a file, named by their path in the tree (``output.weight``).
        The suffix selects the format: MXNet's, safetensors or npz. Parameters that
        `parallel.Mesh.partition` has divided are written whole.

        Parameters
        ----------
        filename : str
            The path of the file, or of a folder with the format 'huggingface'.
        deduplicate : bool, default False
            Whether to write shared parameters once instead of once per block.
        format : {None, 'huggingface'}
            'huggingface' writes a folder that transformers loads: safetensors files, their index
            and, for networks of `mx.gluon.model_zoo.text`, ``config.json``. Shared parameters are
            written once.
        shard_bytes : float or str, default 5e9
            With 'huggingface', the largest number of bytes in a file, also as in '2GB'.
        name_map : list of `mx.contrib.huggingface.Entry`, optional
            With 'huggingface', the map with which `load_parameters` would read the files, if it
            differs from the network's own.
        """
        if format is not None:
            from .._huggingface.save import save

            entries = self._map_of("save_parameters", format, name_map)
            save(self, filename, entries, huggingface_of(self)[1], shard_bytes)
            return
        params = self._collect_params_with_prefix()
        if deduplicate:
            names = {param: name for name, param in params.items()}
            params = {name: param for param, name in names.items()}
        values = {}  # parameter -> value, so that shared parameters are read only once
        for name, param in params.items():
            params[name] = values.setdefault(param, param.reduced())
        nd.save(filename, with_wholes(divided_paths(self), params))

    def load_parameters(
        self,
        filename: str | os.PathLike[str],
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
        name_map: dict[str, str | None]
        | Callable[[str], str | None]
        | Sequence[Entry]
        | None = None,
        format: str | None = None,
    ) -> None:
        """Reads parameters from a file that `nd.load` supports: a file written by
        `save_parameters`, a file with full parameter names, or, with a `name_map`, a file of
        another framework.

        Parameters
        ----------
        filename : str
            The path of the file.
        ctx : Context or list of Context, optional
            Devices for parameters that are not initialized yet (default: the current context). The
            other parameters keep their devices.
        allow_missing : bool, default False
            Whether parameters that are missing from the file keep their values.
        ignore_extra : bool, default False
            Whether to ignore arrays in the file that belong to no parameter.
        cast_dtype : bool, default False
            Whether dtypes may differ; `dtype_source` ('current' or 'saved') then selects the dtype.
        dtype_source : {'current', 'saved'}, default 'current'
            With `cast_dtype`, the dtype to use if they differ: the parameter's ('current') or the
            file's ('saved').
        name_map : dict or callable, optional
            Maps names in the file to names in this network. It is applied before the names are used
            for anything else. The keys of a dict are names or regular expressions that match whole
            names; the first match wins, and ``\\1`` in its value inserts a group's text. A function
            receives a name and returns the new one. The value None skips an array. Names without a
            match do not change. With the format 'huggingface', a list of
            `mx.contrib.huggingface.Entry`, if it differs from the network's own.
        format : {None, 'huggingface'}
            'huggingface' reads safetensors: a file, a folder, or ``model.safetensors.index.json``.
            Each array is copied to its devices, and each split layer reads its rows, without
            holding the file in memory. float16 and bfloat16 values may be loaded into float32
            parameters; other conversions need `cast_dtype`.

        Raises
        ------
        AssertionError, ValueError
            If names are missing or unexpected, or a shape or dtype differs. Nothing changes in
            this case. If an I/O error or interrupt stops the format 'huggingface' later, some of
            the parameters that were initialized before have their new values.
        """
        if format is not None:
            from .._huggingface.load import load

            entries = self._map_of("load_parameters", format, name_map)
            load(self, filename, entries, ctx, allow_missing, ignore_extra, cast_dtype)
            return
        loaded = loaded_file(filename)
        source = f"file '{filename}'"
        if not isinstance(loaded, dict):
            if loaded or self._collect_params_with_prefix():
                raise ValueError(
                    f"{source} holds arrays without names, so they cannot be assigned to parameters"
                )
            return
        if name_map is not None:
            loaded = renamed(loaded, name_map, source)
        loaded = with_parts(divided_paths(self), loaded, source)
        structured = self._collect_params_with_prefix()
        if not any("." in name for name in loaded) and not any(
            name in structured for name in loaded
        ):
            params = self.collect_params()
            plain = [name[4:] if name.startswith(("arg:", "aux:")) else name for name in loaded]
            known = {*params, *divided_names(params)}
            prefix = "" if any(name in known for name in plain) else self.prefix
            if params and plain and not any(prefix + name in known for name in plain):
                raise AssertionError(
                    f"{source} holds parameters by their full names, or parameters of another "
                    f"block ({brief(plain)}); none of them is in the network ({brief(params)}; "
                    f"{brief(structured)} in files of save_parameters). Load the file into a "
                    "block with the same layers as the saved one, and for full names with the "
                    "same prefix"
                )
            params.load_dict(
                loaded, ctx, allow_missing, ignore_extra, prefix, filename, cast_dtype, dtype_source
            )
            return
        self._load_structured(
            loaded, source, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
        )

    def _map_of(self, who, format, name_map):
        """Returns the map of names for the format 'huggingface', by default the network's own."""
        from .._huggingface.entries import Entry

        if format != "huggingface":
            raise ValueError(f"{who}: format must be None or 'huggingface', not {format!r}")
        if name_map is None:
            return huggingface_of(self)[0]
        if not isinstance(name_map, (list, tuple)) or not all(
            isinstance(entry, Entry) for entry in name_map
        ):
            raise TypeError(
                f"{who}: with format='huggingface', name_map must be a list of entries such as "
                "mx.contrib.huggingface.Rename"
            )
        return name_map

    def save_params(self, filename: str | os.PathLike[str]) -> None:
        """Deprecated: writes the parameters by their full names without the block's prefix. Use
        `save_parameters`."""
        warnings.warn(
            "save_params is deprecated. Please use save_parameters.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.collect_params().save(filename, strip_prefix=self.prefix)

    def load_params(
        self,
        filename: str | os.PathLike[str],
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> None:
        """Deprecated: an alias of `load_parameters`."""
        warnings.warn(
            "load_params is deprecated. Please use load_parameters.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.load_parameters(filename, ctx, allow_missing, ignore_extra)

    def load_dict(
        self,
        param_dict: Mapping[str, NDArray],
        ctx: Devices | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Loads parameters from a dict of arrays named by their path in the tree; see
        `load_parameters`."""
        self._load_structured(
            param_dict, "param_dict", ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
        )

    def _load_structured(
        self, arrays, source, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
    ):
        params = self._collect_params_with_prefix()
        arrays = {
            name[4:] if name.startswith(("arg:", "aux:")) else name: array
            for name, array in arrays.items()
        }
        arrays = with_parts(divided_paths(self), arrays, source)
        # A shared parameter may appear under any of its names.
        there = {params[name] for name in arrays if name in params}
        wanted = {
            name: param for name, param in params.items() if name in arrays or param not in there
        }
        check_names(wanted, arrays, source, allow_missing, True)
        check_names(params, arrays, source, True, ignore_extra, extra=ValueError)
        values = [(name, params[name], array) for name, array in arrays.items() if name in params]
        load_values(values, source, ctx, cast_dtype, dtype_source)

    # Computation

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridizes the descendants that are HybridBlocks."""
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    @is_call
    def __call__(self, *args: Any) -> Any:
        """Calls the pre-forward hooks, `forward` and the forward hooks."""
        outer = _core.get_scope()
        scope = self._scope_ids.get(outer)
        if scope is None:
            scope = self._scope_id(outer)
        try:
            _core.set_scope(scope)
            if self._forward_pre_hooks:
                for hook in list(self._forward_pre_hooks.values()):
                    hook(self, args)
            if self._ctx_group is not None or self._group2ctx is not None or groups_running():
                out = self._run_in_group(args)
            else:
                out = self._run(*args)
            if type(out) in (list, tuple):
                kinds.check_results(self.name, out)
            if self._forward_hooks:
                for hook in list(self._forward_hooks.values()):
                    hook(self, args, out)
            return out
        except MXNetError:
            add_path(is_hybridized(self))
            raise
        finally:
            _core.set_scope(outer)

    def _scope_id(self, outer):
        """Returns and caches the scope id of this block's path within the caller's scope `outer`.
        Queued work is labeled with the scope id."""
        self._scope_ids[outer] = scope = scope_of(self, outer)
        return scope

    def _run_in_group(self, args):
        symbolic, outer = is_symbolic(args), running_group()
        with grouped.replica(self, args, symbolic), grouped.group(self, symbolic):
            return self._run(*grouped.moved(self, args, symbolic, outer))

    def _run(self, *args):
        return self.forward(*args)

    @overridable
    def forward(self, *args: Any) -> Any:
        """Computes the block's result on arrays. Must be overridden by the subclass."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def compiled(self) -> CompiledPrograms:
        """Returns the compiled programs of this block and its descendants: operators, copies and
        bytes on each device.

        Returns
        -------
        CompiledPrograms
            A sequence with one entry for each compiled signature. Printing it shows a table.
        """
        entries, dropped = [], 0

        def collect(block, path):
            nonlocal dropped
            call = compiled_call(block)
            if call is not None:
                entries.extend(call.entries(path))
                dropped += call.dropped
            for name, child in children(block).items():
                collect(child, f"{path}.{name}")

        collect(self, type(self).__name__)
        return CompiledPrograms(entries, dropped)

    def summary(self, *inputs: Any) -> None:
        """Runs the network on the inputs and prints a table of the called layers. The columns are
        the output shape, the number of parameters, their bytes on each device, and the devices.
        The totals on each device follow.

        The network must be initialized. A hybridized network runs eagerly for this call, and its
        compiled programs are kept.
        """
        from ._summary import print_summary

        print_summary(self, inputs)


absent(Block, BLOCK)
absent_before_init(Block)

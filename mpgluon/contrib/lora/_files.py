"""Files of adapters in the format of PEFT: ``adapter_config.json`` and
``adapter_model.safetensors``."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from ... import ndarray as nd
from ..._core import dtype_name
from ..._internal.files import replacing
from ...base import MXNetError
from ...context import cpu
from ...gluon._tree import adapters_of, own_parameters
from ...gluon.parameter._parameter_dict import translated
from ...gluon.utils import brief
from ._adapters import Options, dtype_of, is_embedding, parts_of, shape_of, weight_of
from ._layers import adapted, attach, layers, unsupported

if TYPE_CHECKING:
    from ...gluon.block import Block

_CONFIG, _WEIGHTS, _ROOT = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
# Options of PEFT that change no result, because the names and shapes in the file say the same.
_HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "megatron_core",
    "peft_type",
    "peft_version",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_qalora",
    "qalora_group_size",
    "eva_config",
    "corda_config",
    "loftq_config",
}
_KNOWN = {"lora_alpha", "alpha_pattern", "lora_dropout", "use_dora", "use_rslora"}
# Values of init_lora_weights that leave the base weights unchanged.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


def _module(name_map, path):
    """Returns the name in the file of the layer at `path`, or None to skip it."""
    name = translated(name_map, path)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name_map: returned {name!r} for '{path}', which is not a name")
    return name


def _check_map(name_map, paths):
    """Raises ValueError if a dict maps some of the paths of adapters, but not all."""
    if not isinstance(name_map, dict):
        return

    def matches(pattern, path):
        return pattern == path or re.fullmatch(pattern, path)

    used = {pattern for pattern in name_map for path in paths if matches(pattern, path)}
    missed = [path for path in paths if not any(matches(pattern, path) for pattern in used)]
    if missed:
        unused = [pattern for pattern in name_map if pattern not in used]
        note = f"; no adapter matches its keys {brief(unused)}" if unused else ""
        raise ValueError(
            f"lora.save: name_map has no key that matches the adapters of {brief(missed)}{note}; "
            "map them to the names of modules, or to None to leave them out"
        )


def _task(net):
    """Returns the name that PEFT has for the task of a network, or None."""
    from ...gluon.model_zoo import text  # most networks with adapters need no models

    if isinstance(net, text.Decoder):
        return "CAUSAL_LM"
    return "SEQ_2_SEQ_LM" if isinstance(net, text.T5) else None


def _names(layer, module):
    """Returns {letter: name in the file} of a layer's adapter."""
    if is_embedding(layer):
        return {letter: f"{_ROOT}{module}.lora_embedding_{letter}" for letter in "AB"}
    return {
        "A": f"{_ROOT}{module}.lora_A.weight",
        "B": f"{_ROOT}{module}.lora_B.weight",
        "magnitude": f"{_ROOT}{module}.lora_magnitude_vector",
    }


def _whole(parts):
    """Returns the value of a parameter of an adapter, in host memory. Joins the parts of a split
    one."""
    first = parts[0]
    if getattr(first, "ranges", None) is None:
        return first.reduced().as_in_context(cpu(0))
    pieces = []
    for part in parts:
        value, at = part.reduced().as_in_context(cpu(0)), 0
        for begin, end in part.ranges:
            piece = nd.slice_axis(value, axis=part.axis, begin=at, end=at + end - begin)
            pieces.append((begin, piece))
            at += end - begin
    pieces.sort(key=lambda item: item[0])
    return nd.concat(*[piece for _, piece in pieces], dim=first.axis)


def save(
    net: Block,
    folder: str | os.PathLike[str],
    name: str = "default",
    name_map: Any = None,
    base_model: str | None = None,
    task_type: str | None = None,
) -> None:
    """Writes an adapter into a folder, in the format of the PEFT library.

    Parameters
    ----------
    net : Block
        A network with adapters.
    folder : str
        The folder, which is created if necessary. The files in it are replaced.
    name : str, default 'default'
        Name of the adapter. The files do not contain it.
    name_map : dict or callable, optional
        Maps paths of layers (``layers.0.query``) to module names of the other library
        (``model.layers.0.self_attn.q_proj``), in the form of `load_parameters`: names or regular
        expressions, ``\\1`` for a group, or a function. A dict must match all layers that have the
        adapter.
    base_model : str, optional
        Name or path of the base model that the config names.
    task_type : str, optional
        PEFT's name for the task of the model, which its AutoPeftModel classes need. By default
        'CAUSAL_LM' for `text.Decoder`, 'SEQ_2_SEQ_LM' for `text.T5`, and none otherwise.

    Examples
    --------
    >>> import os, tempfile
    >>> from mpgluon.contrib import lora
    >>> net = nn.HybridSequential()
    >>> net.add(nn.Dense(8, in_units=4))
    >>> net.initialize()
    >>> paths = lora.apply(net, {'0': 2})
    >>> folder = tempfile.mkdtemp()
    >>> lora.save(net, folder, name_map={'0': 'model.up_proj'})
    >>> sorted(nd.load(os.path.join(folder, 'adapter_model.safetensors')))[0]
    'base_model.model.model.up_proj.lora_A.weight'
    """
    arrays, options = {}, {}
    found = adapted(net, "save", name)
    for path, layer in found.items():
        module = _module(name_map, path)
        if module is None:
            continue
        if module in options:
            raise ValueError(f"lora.save: name_map maps two layers to '{module}'")
        options[module] = adapters_of(layer).options[name]
        parts: dict[str, list[Any]] = {}
        for key, param in parts_of(layer, name).items():
            parts.setdefault(key.split("lora_")[1].partition("_")[0], []).append(param)
        for letter, own in parts.items():
            value = _whole(own)
            if letter == "A" and is_embedding(layer):
                value = value.T
            arrays[_names(layer, module)[letter]] = value
    _check_map(name_map, list(found))
    if not options:
        raise ValueError("lora.save: name_map maps all layers to None, so nothing would be saved")
    first = next(iter(options.values()))
    for field in ("dropout", "dora", "rslora"):
        if len({getattr(option, field) for option in options.values()}) > 1:
            raise MXNetError(
                f"lora.save: the layers of adapter {name!r} differ in {field}, which a PEFT file "
                "cannot express"
            )
    config = {
        "peft_type": "LORA",
        "task_type": _task(net) if task_type is None else task_type,
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": _number(first.alpha),
        "lora_dropout": first.dropout,
        "use_dora": first.dora,
        "use_rslora": first.rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": list(options),
        "rank_pattern": {m: o.rank for m, o in options.items() if o.rank != first.rank},
        "alpha_pattern": {
            m: _number(o.alpha) for m, o in options.items() if o.alpha != first.alpha
        },
    }
    os.makedirs(folder, exist_ok=True)
    nd.save(os.path.join(folder, _WEIGHTS), arrays)
    with replacing(os.path.join(folder, _CONFIG)) as file:
        file.write((json.dumps(config, indent=2) + "\n").encode())


def _number(value):
    return int(value) if value == int(value) else value


def load(
    net: Block,
    folder: str | os.PathLike[str],
    name: str = "default",
    name_map: Any = None,
    dtype: Any = None,
) -> list[str]:
    """Adds an adapter that PEFT or `save` has written, and makes it active. All other parameters
    are frozen, as by `apply`.

    The file determines the layers, ranks, scales and options. If it has the weights of layers with
    adapters, as PEFT writes for embeddings, they replace the weights of the network.

    Parameters
    ----------
    net : Block
        An initialized network whose shapes are known.
    folder : str
        The folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
    name : str, default 'default'
        Name that the adapter gets.
    name_map : dict or callable, optional
        See `save`.
    dtype : str or numpy.dtype, optional
        Data type of A and B; see `apply`.

    Returns
    -------
    list of str
        The paths of the layers.

    Raises
    ------
    ValueError
        If the file has an adapter for a module that the network lacks, or an option that is not
        supported. The network does not change in this case.

    Examples
    --------
    >>> import tempfile
    >>> from mpgluon.contrib import lora
    >>> net, other = nn.Dense(8, in_units=4), nn.Dense(8, in_units=4)
    >>> net.initialize(), other.initialize()
    (None, None)
    >>> paths, folder = lora.apply(net, {'.*': 2}), tempfile.mkdtemp()
    >>> lora.save(net, folder, name_map={'': 'up'})
    >>> lora.load(other, folder, name_map={'': 'up'})
    ['']
    """
    path = os.path.join(folder, _CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        raise MXNetError(f"lora.load: cannot read '{path}': {error}") from error
    _check(config, path)
    weights = os.path.join(folder, _WEIGHTS)
    arrays = nd.load(weights)
    work, values, supported, bases = {}, {}, {}, {}
    for where, layer in layers(net):
        module = _module(name_map, where)
        if module is None:
            continue
        names = _names(layer, module)
        # Earlier versions of PEFT append .weight to the name of the magnitudes.
        names = {k: n if n in arrays else f"{n}.weight" for k, n in names.items()}
        if names["A"] not in arrays:
            continue
        if unsupported(layer) is not None:
            raise ValueError(f"lora.load: '{where}' {unsupported(layer)}")
        if names["B"] not in arrays:
            raise ValueError(f"lora.load: '{weights}' has '{names['A']}', but lacks its lora_B")
        values[where] = {letter: arrays.pop(n) for letter, n in names.items() if n in arrays}
        # PEFT also writes the weights of embeddings with adapters, which may have new rows.
        base = f"{_ROOT}{module}.base_layer.weight"
        weight = own_parameters(layer).get("weight")
        if base in arrays and weight is not None:
            if arrays[base].shape != weight.shape:
                raise ValueError(
                    f"lora.load: the weight of '{where}' has shape {arrays[base].shape} in the "
                    f"file, but {weight.shape} in the network; create the network with as many rows"
                )
            bases[weight] = arrays.pop(base)
        rank = values[where]["A"].shape[0]
        alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", 8))
        work[where] = rank, alpha, "magnitude" in values[where]
        supported[where] = layer
    if arrays:
        raise ValueError(
            f"lora.load: '{weights}' has {brief(arrays)}, but the network has no layer of this "
            f"name; its layers are {brief(p for p, b in layers(net) if unsupported(b) is None)}; "
            "give name_map, which maps them to the names in the file"
        )
    if not work:
        raise ValueError(f"lora.load: '{weights}' holds no adapters")
    planned = {}
    for where, (rank, alpha, dora) in work.items():
        layer = supported[where]
        outputs, inputs = shape_of(layer)
        shapes = {"A": (rank, inputs), "B": (outputs, rank)}
        if is_embedding(layer):
            shapes = {"A": (rank, outputs), "B": (inputs, rank)}
        for letter, shape in shapes.items():
            if tuple(values[where][letter].shape) != shape:
                raise ValueError(
                    f"lora.load: lora_{letter} of '{where}' has shape "
                    f"{tuple(values[where][letter].shape)} in the file, but the layer needs {shape}"
                )
        if weight_of(layer).arrays is None:
            raise ValueError(
                f"lora.load: '{where}' is not initialized; call net.initialize() or load its "
                "weights first"
            )
        have = dtype_of(layer)
        own = dtype_name(dtype) if dtype is not None else have
        if dtype is None and have in ("float16", "bfloat16"):
            own = "float32"
        planned[where] = (
            layer,
            Options(
                rank,
                float(alpha),
                float(config.get("lora_dropout", 0)),
                dora,
                bool(config.get("use_rslora", False)),
                own,
            ),
        )
    attach(net, planned, name, "load")
    for weight, value in bases.items():
        weight.set_data(value.astype(weight.dtype))
    for where, (layer, _) in planned.items():
        for key, param in parts_of(layer, name).items():
            letter = key.split("lora_")[1].partition("_")[0]
            value = values[where][letter]
            if letter == "A" and is_embedding(layer):
                value = value.T
            param.set_data(value.astype(param.dtype))
    return list(planned)


def _pattern(patterns, module, default):
    """Returns the value of the pattern that matches the end of a module's name, as PEFT does."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _check(config, path):
    """Raises ValueError for options that would change the result and are not supported."""
    if config.get("peft_type") != "LORA":
        raise ValueError(
            f"lora.load: '{path}' has peft_type {config.get('peft_type')!r}; expected 'LORA'"
        )
    start = config.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        raise ValueError(
            f"lora.load: '{path}' has init_lora_weights={start!r}, which changes the base weights; "
            "convert the adapter with PEFT's path_initial_model_for_weight_conversion"
        )
    if config.get("bias", "none") != "none":
        raise ValueError(
            f"lora.load: '{path}' has bias={config['bias']!r}; only 'none' is supported"
        )
    for option, value in config.items():
        if option not in _HARMLESS | _KNOWN and value:
            raise ValueError(
                f"lora.load: '{path}' has {option}={value!r}, which is not supported; merge the "
                "adapter into its model with PEFT, and load the merged model"
            )

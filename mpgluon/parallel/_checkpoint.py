"""Checkpoints: a file of arrays for each device, and an index by parameter name and global shape.

The index defines the checkpoint. It names files of its own generation, which are on the disk before
the index replaces the previous one. Files of earlier generations are removed afterwards. If a save
is killed at any moment, the index therefore names complete files.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import re
import threading
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import autograd, ndarray as nd, random
from .._core import NotSupportedError, dtype_name
from .._internal import ranks
from .._internal.files import replacing
from .._internal.kinds import plain
from .._internal.progress import bar as progress_bar
from ..base import MXNetError, itemsize
from ..gluon._tree import parameters_by_path
from ..gluon.parameter import _gradient_contents as gradients
from ..gluon.parameter._parameter_dict import name_of_whole
from ..gluon.trainer import loss_scaling, state_of
from ..ndarray import _safetensors
from ..optimizer._nested_states import check_state, put_together
from ._checkpoint_index import (
    FORMAT,
    INDEX,
    STATE,
    check_trainer,
    compare,
    open_shards,
    read_index,
    state_keys,
)
from ._split_states import NewShapes, equal_if_ambiguous, is_split, is_split_over
from ._tensor_parallel.parameters import ShardedParameter, complete_whole

if TYPE_CHECKING:
    from ..gluon.block import Block
    from ..gluon.trainer import Trainer

__all__ = ["Saving", "load", "save"]

# Names of shards, and of temporary files that an interrupted save leaves in the directory.
_FILES = re.compile(
    r"shard-\d{6}-[\w.-]+\.safetensors(\.[0-9a-f]{16}\.new)?|index\.json(\.[0-9a-f]{16})?\.new"
)

# An array of a checkpoint, or the part of it that a parameter on one device holds. `where` is None
# for the whole array; otherwise the part is the ranges [begin, end) along an axis.
_Part = collections.namedtuple("_Part", "name dtype shape where read device")
_Where = collections.namedtuple("_Where", "axis ranges")


def parts_of(net):
    """Returns the parameters of a network as name -> [(parameter, where)], with one pair for each
    shard, and the global shapes.

    A parameter that is a shard has the attributes `global_shape`, `axis` and `index`. Unless the
    shards are consecutive ranges, it also has `ranges`. Its name is the name of the whole parameter
    with the shard's index appended, or its attribute `global_name`.
    """
    shards, shapes, seen = {}, {}, set()
    for name, param in parameters_by_path(net).items():
        if param in seen:  # a parameter that several blocks share is saved under its first name
            continue
        seen.add(param)
        whole = getattr(param, "global_shape", None)
        if whole is not None:
            name = _global_name(name, param)
        shards.setdefault(name, []).append(param)
        shapes[name] = param.shape if whole is None else tuple(whole)
    parts = {}
    for name, params in shards.items():
        if len(params) == 1 and getattr(params[0], "global_shape", None) is None:
            parts[name] = [(params[0], None)]
            continue
        at, parts[name] = 0, []
        for param in sorted(params, key=lambda param: param.index):
            size = param.shape[param.axis]
            parts[name].append(
                (
                    param,
                    _Where(param.axis, tuple(getattr(param, "ranges", None) or [(at, at + size)])),
                )
            )
            at += size
        total = shapes[name][params[0].axis]
        if at != total:
            raise MXNetError(
                f"the shards of parameter '{name}' have {at} elements in total along axis "
                f"{params[0].axis}, but its shape is {shapes[name]}"
            )
        ends = sorted(span for _, where in parts[name] for span in where.ranges)
        if any(
            end != begin for (_, end), (begin, _) in zip([(0, 0), *ends], [*ends, (total, total)])
        ):
            raise MXNetError(
                f"the shards of parameter '{name}' do not cover it exactly once: they are the "
                f"ranges {ends} along axis {params[0].axis} of {shapes[name]}"
            )
    return parts, shapes


def _global_name(name, param):
    unsplit = name_of_whole(name)
    if unsplit != name:  # layers of mx.parallel: the name in the layer before it was split
        return unsplit
    given = getattr(param, "global_name", None)
    if given is not None:
        return given
    number = str(param.index)
    return name[: -len(number)].rstrip("_.") if name.endswith(number) else name


def data_of(param):
    """Returns one array for all replicas. Only values that the trainer does not keep equal, such as
    moving statistics, are averaged."""
    return param.reduced() if param.grad_req == "null" else param.list_data()[0].detach()


class Saving:
    """A save in progress, or completed; the result of `save`.

    Examples
    --------
    >>> import tempfile
    >>> net = nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> saving = mx.parallel.save(tempfile.mkdtemp(), net, background=True)
    >>> saving.wait()
    >>> saving
    Saving(done)
    """

    def __init__(self) -> None:
        self._thread = self._error = None

    def __repr__(self) -> str:
        return f"Saving({'done' if self.done() else 'under way'})"

    def done(self) -> bool:
        """True if the save has ended, with or without an error."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until the checkpoint is on the disk. Raises an error of the save, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work, background):
        if not background:
            work()
            return

        def run():
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()


_saving = {}  # directory -> its latest Saving
_locks: dict[str, threading.Lock] = {}  # directory -> lock of the thread that writes or reads it


def _alone_in(directory):
    """Returns the lock of a directory, which serializes reads and writes by several threads."""
    return _locks.setdefault(os.path.realpath(directory), threading.Lock())


def save(
    directory: str | os.PathLike[str],
    net: Block,
    trainer: Trainer | None = None,
    step: int | None = None,
    position: Any = None,
    loss_scale: Any = None,
    extra: Any = None,
    background: bool = False,
    gather: bool = False,
    progress: bool | None = None,
) -> Saving:
    """Writes a checkpoint: parameters, optimizer states, the random state and the progress of
    training.

    It may be called at any moment: the checkpoint includes gradients that an update has yet to use,
    and the number of calls of ``step`` that wait for it (``accumulate``).

    There is one safetensors file for each device with the arrays on that device, and
    ``index.json``. The directory holds one checkpoint: the previous one remains valid until the new
    one is on the disk.

    Parameters
    ----------
    directory : str
        Directory, created if it does not exist.
    net : Block
        Network whose parameters are saved, on any devices.
    trainer : Trainer, optional
        Trainer whose optimizer states are saved.
    step : int, optional
        Number of the step; defaults to the optimizer's number of updates.
    position : optional
        Position in the data, as any value that JSON supports: ``{'epoch': 3, 'batch': 120}``.
    loss_scale : float, or an object with an attribute loss_scale, optional
        Loss scale in half precision, which `load` returns. Defaults to that of the trainer
        (``amp.init_trainer``), if it has one, which `load` sets in its trainer.
    extra : optional
        Any other value that JSON supports.
    background : bool, default False
        Copy the arrays, each on its device, and write the copies in a background thread. Errors are
        raised by ``wait()`` of the result, or by the next save into the directory.
    gather : bool, default False
        Write one file of whole arrays, which other programs can read, instead of one for each
        device. Without it, at most one array of one device is in the host's memory at a time.
    progress : bool, optional
        Whether to show a progress bar; by default, on a terminal after two seconds.

    Returns
    -------
    Saving
        A completed save, unless ``background=True``.

    Raises
    ------
    MXNetError
        If JSON does not support `step`, `position`, `loss_scale` or `extra`.
    OSError
        If the directory cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> directory = tempfile.mkdtemp()
    >>> mx.parallel.save(directory, net, step=7, position={'epoch': 1}).done()
    True
    >>> mx.parallel.load(directory, net)
    {'step': 7, 'position': {'epoch': 1}, 'loss_scale': None, 'extra': None}
    """
    directory = os.path.abspath(os.fspath(directory))
    former = _saving.pop(directory, None)
    if former is not None:
        former.wait()
    with autograd.pause():
        parts, index = _describe(net, trainer)
        if ranks.count() > 1:
            if gather:
                raise NotSupportedError(
                    "save: gather=True needs the arrays of all ranks on one rank; load the "
                    "checkpoint in one process and save it there, or omit gather"
                )
            background = False  # the commit is a collective call, so it must run in this thread
        if background:
            parts = [_copied(part) for part in parts]
        else:
            parts = [part._replace(read=part.read.asnumpy) for part in parts]
    if step is None and trainer is not None:
        step = trainer.optimizer.num_update
    if loss_scale is None and trainer is not None:
        loss_scale = loss_scaling(trainer)
    index.update(
        step=step,
        position=position,
        loss_scale=getattr(loss_scale, "loss_scale", loss_scale),
        extra=extra,
        random=list(random.get_state()),
    )
    try:
        json.dumps(index)
    except (TypeError, ValueError) as error:
        raise MXNetError(
            f"save: step, position, loss_scale and extra must be JSON-serializable: {error}"
        ) from error
    saving = Saving()
    if background:
        _saving[directory] = saving

    def write():
        with _alone_in(directory):
            _write(directory, parts, index, gather, progress)

    saving._run(write, background)
    return saving


def _copied(part):
    """Returns the part with a copy of its array. Reading releases the copy, so it works once."""
    holder = [part.read.copy()]
    return part._replace(read=lambda: holder.pop().asnumpy())


def _describe(net, trainer):
    """Returns the unread parts of all arrays, and the other entries of the index."""
    params, shapes = parts_of(net)
    parts, names = [], {}
    for name, pieces in params.items():
        for param, where in pieces:
            data = data_of(param)
            parts.append(
                _Part(name, dtype_name(data.dtype), shapes[name], where, data, data.context)
            )
            names[param] = name, where
    index = {"format": FORMAT, "trainer": None}
    if trainer is None:
        return parts, index
    numbered = {}
    for i, param in enumerate(trainer.parameters):
        name, where = names.setdefault(param, (param.name, None))
        numbered[i] = name if where is None else f"{name}:{where.ranges[0][0]}"
    arrays = {}
    header = state_of(trainer).describe(arrays, numbered)
    wheres, ambiguous = _wheres_of_states(trainer, names, numbered, header["states"], arrays)
    states = {"states": {}, "shapes": {}, "counts": {}, "gradients": {}}
    for i, param in enumerate(trainer.parameters):
        name, where = names[param]
        for kind in states:
            if numbered[i] in header[kind]:
                states[kind].setdefault(name, header[kind][numbered[i]])
        keys = [
            (key, STATE + name + key[len(numbered[i]) :], wheres.get(key))
            for key in state_keys(header["states"].get(numbered[i], []), numbered[i])
        ]
        if numbered[i] in header["gradients"]:
            entry = header["gradients"][numbered[i]]
            if where is not None and any(r["kind"] == "rows" for r in entry["replicas"]):
                raise NotSupportedError(
                    f"save: parameter '{name}' is split, but its row_sparse gradient holds rows "
                    "that no update has used; save after the update"
                )
            there = gradients.keys_of(entry, numbered[i])
            keys += [
                (key, STATE + other, where)
                for (key, _), (other, _) in zip(there, gradients.keys_of(entry, name))
            ]
        for key, whole, its_where in keys:
            array = arrays[key]
            if where is not None and its_where is None and where.ranges[0][0]:
                continue  # all shards have the same value, so save only the first
            shape = list(array.shape)
            if its_where is not None:
                shape[its_where.axis] = shapes[name][its_where.axis]
            parts.append(
                _Part(whole, dtype_name(array.dtype), tuple(shape), its_where, array, array.context)
            )
    # The shapes of the network's parameters are already in the index's entry `arrays`.
    states["shapes"] = {n: shape for n, shape in states["shapes"].items() if n not in params}
    every = list(dict.fromkeys(names[param][0] for param in trainer.parameters))
    index["trainer"] = {**header, **states, "names": every, "ambiguous": ambiguous}
    return parts, index


def _wheres_of_states(trainer, names, numbered, states, arrays):
    """Returns two dicts about the optimizer states of split parameters. The first maps the name of
    a state's array to the `_Where` of its part; it omits arrays that are the same for all parts.
    The second has the arrays whose shapes do not show whether they are split. It maps the name of
    the whole array to (split axis, True if all parts are equal)."""
    families, wheres, ambiguous = {}, {}, {}
    for i, param in enumerate(trainer.parameters):
        name, where = names[param]
        if where is not None and numbered[i] in states:
            families.setdefault(name, []).append((param, where, numbered[i]))
    for name, family in families.items():
        parts, its_wheres, keys = zip(*family)
        if any(states[key] != states[keys[0]] for key in keys):
            raise NotSupportedError(
                f"save: parameter '{name}' is split over devices, and the states of its parts "
                "have different numbers or structures; save with Trainer.save_states"
            )
        for its_keys in zip(*[state_keys(states[key], key) for key in keys]):
            axis, its_arrays = its_wheres[0].axis, [arrays[key] for key in its_keys]
            if is_split_over(name, axis, parts, its_arrays):
                wheres.update(zip(its_keys, its_wheres))
                equal = equal_if_ambiguous(axis, parts, its_arrays)
                if equal is not None:
                    ambiguous[STATE + name + its_keys[0][len(keys[0]) :]] = axis, equal
    return wheres, ambiguous


def _shape_of(shape, where):
    """Returns the shape of the part `where` of an array."""
    if where is None:
        return tuple(shape)
    axis, ranges = where
    return (*shape[:axis], sum(end - begin for begin, end in ranges), *shape[axis + 1 :])


def _spans(ranges):
    """Yields (position in the part, begin, end) for each range."""
    at = 0
    for begin, end in ranges:
        yield at, begin, end
        at += end - begin


def _whole(parts):
    """Merges the parts of each array into one part, assembled when it is read."""
    by_name = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)

    def together(pieces):
        if pieces[0].where is None:
            return pieces[0].read

        def read():
            whole = None
            for piece in pieces:
                value, before = piece.read(), (slice(None),) * piece.where.axis
                whole = np.empty(piece.shape, value.dtype) if whole is None else whole
                for at, begin, end in _spans(piece.where.ranges):
                    whole[(*before, slice(begin, end))] = value[
                        (*before, slice(at, at + end - begin))
                    ]
            return whole

        return read

    return [
        pieces[0]._replace(where=None, read=together(pieces), device="all devices")
        for pieces in by_name.values()
    ]


def _begin(directory, former):
    if os.path.isfile(directory):
        raise FileExistsError(
            f"save: '{directory}' is a file, but a checkpoint is a folder; pass the path of a "
            "folder, or write only the parameters with net.save_parameters(file)"
        )
    os.makedirs(directory, exist_ok=True)
    return {0: _generation(former) + 1} if ranks.own() == 0 else {}


def _write(directory, parts, index, gather, progress):
    former = os.path.join(directory, INDEX)
    # Rank 0 chooses the generation for all ranks.
    generation = ranks.join(ranks.all_succeed("save", lambda: _begin(directory, former)))[0]
    if gather:
        parts = _whole(parts)
    shards = {}
    for part in parts:
        shards.setdefault(part.device, []).append(part)
    files = []
    for device, own in shards.items():
        name = f"shard-{generation:06d}-{re.sub(r'[^A-Za-z0-9]+', '', str(device))}.safetensors"
        keys = [
            part.name
            if part.where is None
            else f"{part.name}:{part.where.axis}:{part.where.ranges[0][0]}"
            for part in own
        ]
        files.append((name, device, keys, own))
    written = ranks.join(
        ranks.all_succeed("save", lambda: _write_shards(directory, files, progress))
    )
    described, arrays = [], {}
    for number, (name, device, keys, own) in enumerate(files):
        size, header, sums = written[number]
        described.append(
            {"file": name, "device": str(device), "bytes": size, "header_crc32": header}
        )
        for key, part, total in zip(keys, own, sums):
            axis, ranges = part.where or (None, [])
            entry = arrays.setdefault(
                part.name,
                {"shape": list(part.shape), "dtype": part.dtype, "axis": axis, "pieces": []},
            )
            entry["pieces"].append(
                {
                    "shard": number,
                    "key": key,
                    "ranges": [list(span) for span in ranges],
                    "crc32": total,
                }
            )
    for entry in arrays.values():
        entry["pieces"].sort(key=lambda piece: piece["ranges"])
    text = _text({**index, "generation": generation, "shards": described, "arrays": arrays})

    def commit():
        if ranks.own() == 0:
            _commit(directory, former, text, {shard["file"] for shard in described})

    ranks.all_succeed("save", commit)


def _write_shards(directory, files, progress):
    """Writes the shards of this rank. Returns their sizes and checksums by index."""
    written = {}
    shapes = [[_shape_of(part.shape, part.where) for part in own] for *_, own in files]
    total = sum(
        math.prod(shape) * itemsize(part.dtype)
        for its_shapes, (*_, own) in zip(shapes, files)
        for shape, part in zip(its_shapes, own)
    )
    with progress_bar(total, progress, "saving") as bar:
        for number, (name, device, keys, own) in enumerate(files):
            if _owner(device) == ranks.own():
                written[number] = _safetensors.write(
                    os.path.join(directory, name),
                    [
                        (key, part.dtype, shape, part.read)
                        for key, shape, part in zip(keys, shapes[number], own)
                    ],
                    bar.update,
                )
    _sync(directory)  # the files' directory entries must be on the disk before the index
    return written


def _text(index):
    """Returns the index as JSON with a line for each array. (json.dumps with `indent` would use the
    slow encoder.)"""

    def lines(entries, indent):
        inside = [f"{indent}{json.dumps(key)}: {value}" for key, value in entries.items()]
        return "{\n" + ",\n".join(inside) + "\n" + indent[1:] + "}" if inside else "{}"

    arrays = {name: json.dumps(entry) for name, entry in index["arrays"].items()}
    rest = {key: json.dumps(value) for key, value in index.items() if key != "arrays"}
    return lines({**rest, "arrays": lines(arrays, "  ")}, " ")


def _owner(device):
    """Returns the rank that writes the arrays on a device."""
    # A gathered array has no rank. It exists only in a single process, which is rank 0.
    return getattr(device, "rank", None) or 0


def _commit(directory, former, text, current):
    with replacing(former) as file:
        file.write((text[:-2] + f',\n "crc32": {zlib.crc32(text.encode())}\n}}\n').encode())
    _sync(directory)
    for name in os.listdir(directory):
        if _FILES.fullmatch(name) and name not in current:
            os.remove(os.path.join(directory, name))


def _sync(directory):
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _generation(path):
    """Returns the latest generation of all files in the directory, even if the index that names
    them is damaged."""
    found = [
        int(name[6:12])
        for name in os.listdir(os.path.dirname(path))
        if _FILES.fullmatch(name) and name.startswith("shard-")
    ]
    return max(found, default=0)


# Loading


def load(
    directory: str | os.PathLike[str],
    net: Block,
    trainer: Trainer | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Reads a checkpoint into a network on any devices, split in any way.

    The whole checkpoint is checked before anything changes. Arrays are read one at a time. With a
    trainer, gradients are also replaced: gradients that no update had used when the checkpoint was
    saved, and sums of ``accumulate``, are restored, and later ones are discarded.

    Parameters
    ----------
    directory : str
        Directory of the checkpoint.
    net : Block
        An initialized network. The values of its parameters are replaced, and unknown shapes are
        taken from the checkpoint.
    trainer : Trainer, optional
        Trainer for the optimizer states, and for the loss scale if both trainers have one. Its
        optimizer must have the class of the saved one.
    progress : bool, optional
        See `save`.

    Returns
    -------
    dict
        The arguments ``step``, ``position``, ``loss_scale`` and ``extra`` of `save`. The random
        state is set as well.

    Raises
    ------
    FileNotFoundError
        If the directory contains no checkpoint.
    MXNetError
        If a file is damaged, or the network differs from the checkpoint. The message names the file
        or the first differences.

    Examples
    --------
    Onto other devices than it was saved from:

    >>> import tempfile
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize(ctx=mx.cpu(0))
    >>> directory = tempfile.mkdtemp()
    >>> _ = mx.parallel.save(directory, net)
    >>> other = mx.gluon.nn.Dense(2, in_units=3)
    >>> other.initialize(ctx=mx.cpu(1))
    >>> _ = mx.parallel.load(directory, other)
    >>> bool((other.weight.data().asnumpy() == net.weight.data().asnumpy()).all())
    True
    """
    directory = os.path.abspath(os.fspath(directory))
    former = _saving.pop(directory, None)
    if former is not None:
        former.wait()
    with _alone_in(directory):
        return _load(directory, net, trainer, progress)


def _check(directory, net, trainer, progress, source):
    """Returns the index, the parts of the network, its parameters' (name, where) and the files of a
    checkpoint, after all checks."""
    index = read_index(os.path.join(directory, INDEX))
    wanted, shapes = parts_of(net)
    compare(index, wanted, shapes, directory)
    names = {param: (name, where) for name, pieces in wanted.items() for param, where in pieces}
    if trainer is not None:
        check_trainer(index, trainer, names, directory)
        state_of(trainer).check_header(index["trainer"], source)
    with progress_bar(
        sum(shard["bytes"] for shard in index["shards"]), progress, "checking"
    ) as bar:
        return index, wanted, names, open_shards(directory, index, bar.update)


def _load(directory, net, trainer, progress):
    source = f"the checkpoint '{directory}'"
    index, wanted, names, files = ranks.all_succeed(
        "load", lambda: _check(directory, net, trainer, progress, source)
    )
    reader = _Reader(index["arrays"], files)
    for name, pieces in wanted.items():
        complete([param for param, _ in pieces], tuple(index["arrays"][name]["shape"]))
    wanted, _ = parts_of(net)  # by now all shapes are known
    names.update(
        (param, (name, where)) for name, pieces in wanted.items() for param, where in pieces
    )
    for param in names:  # before reading gradients, which need arrays
        if param.arrays is None:
            param.finish_deferred_init()
    if trainer is not None:
        states, grads = _read_training(reader, index, trainer, names, source)
    with contextlib.ExitStack() as stack, autograd.pause():
        for file in files:
            stack.enter_context(file.opened())
        for name, pieces in wanted.items():
            for param, where in pieces:
                for target in param.list_data():
                    reader.read(name, where, target)
    if trainer is not None:
        counts = index["trainer"]["counts"]
        state_of(trainer).take_over(
            {"loss_scaler": index.get("loss_scaler"), **index["trainer"]},
            states,
            {
                i: counts[names[param][0]]
                for i, param in enumerate(trainer.parameters)
                if names[param][0] in counts
            },
            grads,
        )
    random.set_state(tuple(index["random"]))
    return {key: index[key] for key in ("step", "position", "loss_scale", "extra")}


def complete(params, shape):
    """Sets the shape of a parameter, or the global shape of its shards."""
    for param in params:
        if isinstance(param, ShardedParameter):
            complete_whole(param, shape)
            return
        if getattr(param, "global_shape", None) is None:
            param.shape = shape


class _Reader:
    """Reads parts of arrays, piece by piece, into arrays on devices."""

    def __init__(self, arrays, files):
        self._arrays, self._files = arrays, files

    def read_new(self, name, param, where):
        """Returns an array on the parameter's first device with the part `where` of a saved
        array."""
        entry = self._arrays[name]
        shape = _shape_of(entry["shape"], where)
        array = nd.empty(shape, ctx=param.list_ctx()[0], dtype=entry["dtype"])
        self.read(name, where, array)
        return array

    def read(self, name, where, target):
        """Fills `target` with the part `where` of an array, or with all of it if `where` is
        None."""
        entry, target = self._arrays[name], plain(target)
        axis, (wanted, ranges) = entry["axis"], where or (None, ())
        for piece in entry["pieces"]:
            file, key = self._files[piece["shard"]], piece["key"]
            for there in _spans(piece["ranges"]) if axis is not None else [None]:
                for here in _spans(ranges) if wanted is not None else [None]:
                    source, place = _overlap(axis, there, wanted, here)
                    if source is None:
                        continue
                    value = nd.array(file.read(key, source), ctx=target.context, dtype=target.dtype)
                    if value.shape == target.shape or not entry["shape"]:
                        target[:] = value.reshape(target.shape) if entry["shape"] else value
                    else:
                        target[
                            tuple(
                                slice(*place[d]) if d in place else slice(None)
                                for d in range(target.ndim)
                            )
                        ] = value


def _overlap(axis, there, wanted, here):
    """Returns the overlap of a stored range with a wanted range as two dicts from axis to (begin,
    end): in the stored part, and in the target. Returns (None, None) if they do not overlap. `axis`
    and `wanted` are the axes (or None) of the ranges `there` (stored) and `here` (wanted), which
    are (position in the part, begin, end)."""
    if axis is not None and axis == wanted:
        low, high = max(there[1], here[1]), min(there[2], here[2])
        if low >= high:
            return None, None
        return ({axis: (at + low - begin, at + high - begin)} for at, begin, _ in (there, here))
    source, place = {}, {}
    if axis is not None:
        at, begin, end = there
        source[axis], place[axis] = (at, at + end - begin), (begin, end)
    if wanted is not None:
        at, begin, end = here
        source[wanted], place[wanted] = (begin, end), (at, at + end - begin)
    return source, place


def _read_training(reader, index, trainer, names, source):
    """Returns the states of a trainer's parameters (index -> nested state), and the gradients that
    an update has yet to use (index -> gradients of the replicas). All arrays are on their
    parameter's first device."""
    saved, states, found = index["trainer"], {}, {}
    for i, param in enumerate(trainer.parameters):
        name, where = names[param]
        whole = index["arrays"].get(name, {"shape": saved["shapes"].get(name)})["shape"]

        new = NewShapes(trainer.optimizer, i, param, name)

        def array_of(key, stype="default", param=param, where=where, whole=whole, new=new):
            shape = index["arrays"][STATE + key]["shape"]
            part = where if where is not None and is_split(shape, whole, where.axis) else None
            axis, equal = saved["ambiguous"].get(STATE + key, (None, None))
            if axis is not None:
                own = _shape_of(shape, part)
                if new.is_one_part(key, shape, own, axis, equal):
                    part = _Where(axis, ((0, 1),))
            return reader.read_new(STATE + key, param, part).tostype(stype)

        if name in saved["states"]:
            states[i] = put_together(saved["states"][name], name, array_of, source)
            if where is None:
                check_state(states[i], whole, param, source)
            state_of(trainer).check_states({i: states[i]}, source)
        if name in saved["gradients"]:
            found.update(state_of(trainer).read_gradients(saved, {i: name}, array_of, source))
    return states, found

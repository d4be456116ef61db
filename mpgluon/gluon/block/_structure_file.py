"""`Block.save` and `Block.load`: the tree of blocks that accompanies a network's parameters.

The file has MXNet's format without the compiled graphs. Each block has an entry
``<class><number>``, which holds the block's name, whether it was hybridized, the names of its
children, and their entries.
"""

import contextlib
import json

from ..._core import at_once, write_file
from ..._internal.files import open_regular
from .._tree import can_be_hybridized, children, is_hybridized


def save_structure(block, path):
    """Writes the tree of blocks into a file."""
    counter = [0]
    write_file(path, json.dumps(dict([_entry(block, counter)])).encode())


def _key(block, counter):
    return f"{type(block).__name__.lower()}{counter[0]}"


def _entry(block, counter):
    key, entry, inner = _key(block, counter), {"orig_name": block.name}, []
    if can_be_hybridized(block):
        entry["hybridized"] = is_hybridized(block)
    entry["children"] = {child.name: name for name, child in children(block).items()}
    for child in children(block).values():
        counter[0] += 1
        inner.append(_entry(child, counter))
    return key, {**entry, **dict(inner)}


@contextlib.contextmanager
def structure_of(path, block):
    """Renames the children of the tree of blocks as in the file, and hybridizes the blocks that
    were hybridized when it was saved. Undoes this if the body of the context raises.

    Raises ValueError, and changes nothing, if the file describes a different tree."""
    with open_regular(path) as file:
        try:
            tree = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a model description: {error}") from None
    steps = []
    _match(block, [0], tree, path, steps)
    changes = [
        (vars(one), "_children", dict(zip(names, children(one).values())))
        for one, _, names in steps
    ]
    changes += [(vars(one), "_active", True) for one, entry, _ in steps if entry.get("hybridized")]
    former = [(owner, name, owner[name]) for owner, name, _ in changes]
    at_once(*changes)
    try:
        yield
    except BaseException:
        at_once(*former)
        raise


def _match(block, counter, tree, path, steps):
    key = _key(block, counter)
    entry = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(entry, dict):
        there = (
            ", ".join(
                name for name, one in tree.items() if isinstance(one, dict) and name != "children"
            )
            if isinstance(tree, dict)
            else ""
        )
        raise ValueError(
            f"{path} describes another model: {block.name} must have {key}, but has "
            f"{there or 'nothing'}; create the same blocks in the same order"
        )
    names = list(entry["children"].values()) if isinstance(entry.get("children"), dict) else []
    if len(names) != len(children(block)):
        raise ValueError(
            f"{path} describes another model: {key} has {len(names)} children in the file, but "
            f"{block.name} has {len(children(block))}"
        )
    steps.append((block, entry, names))
    for child in children(block).values():
        counter[0] += 1
        _match(child, counter, entry, path, steps)

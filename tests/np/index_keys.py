"""Random keys for x[key] and x[key] = value."""

import numpy as np

SHAPES = [(4, 3, 5), (3,), (2, 0, 3), (), (4, 4), (2, 3, 2, 2)]


def _slice(draw, size):
    def limit():
        return None if draw.random() < 0.4 else int(draw.integers(-size - 2, size + 3))

    step = None if draw.random() < 0.5 else int(draw.choice([-2, -1, 1, 2, 3]))
    return slice(limit(), limit(), step)


def _integer(draw, size):
    extra = draw.random() < 0.03  # out of range
    return int(draw.integers(-size - extra, size + extra))


def _entry(draw, size, index_shape):
    """Returns an entry of a key for a dimension: an integer, a slice, an index array or a mask."""
    kinds = [
        lambda: _integer(draw, size),
        lambda: _slice(draw, size),
        lambda: _slice(draw, size),
        lambda: slice(None),
        lambda: draw.integers(-size, size, size=index_shape),
        lambda: draw.integers(-size, size, size=index_shape[-1]).tolist(),
        lambda: np.int64(_integer(draw, size)),
        lambda: np.array(_integer(draw, size)),
        lambda: draw.random(size) < 0.5,
        lambda: (draw.random(size) < 0.5).tolist(),
    ]
    return kinds[draw.integers(len(kinds))]()


def random_key(draw, shape):
    """Returns a key of NumPy for an array of the shape. A few keys are invalid."""
    entries, axis, ellipsis = [], 0, False
    index_shape = [(2,), (2,), (3, 2), (2, 1)][draw.integers(4)]
    for _ in range(draw.integers(1, len(shape) + 2)):
        kind = draw.random()
        if kind < 0.1:
            entries.append(None)
        elif kind < 0.17 and not ellipsis:
            entries.append(Ellipsis)
            ellipsis = True
        elif kind < 0.2:
            entries.append(bool(draw.random() < 0.7))
        elif axis >= len(shape):
            if draw.random() < 0.9:
                break
            entries.append(0)
        elif kind < 0.3 and axis + 2 <= len(shape):
            entries.append(draw.random(shape[axis : axis + 2]) < 0.5)
            axis += 2
        else:
            entries.append(_entry(draw, shape[axis] or 1, index_shape))
            axis += 1
    return entries[0] if len(entries) == 1 and draw.random() < 0.6 else tuple(entries)


def on_device(draw, key, convert):
    """Returns the key with some arrays converted by `convert`, integers with any dtype."""
    if isinstance(key, tuple):
        return tuple(on_device(draw, entry, convert) for entry in key)
    if isinstance(key, np.ndarray) and draw.random() < 0.6:
        dtypes = ["int32", "int64", "int8", "float32"]
        return convert(key if key.dtype == bool else key.astype(draw.choice(dtypes)))
    return key


def random_value(draw, selected, convert):
    """Returns a value that can be broadcast to an array, for NumPy and for mpgluon."""
    kind = draw.integers(4)
    if kind == 0:
        return -7.5, -7.5
    values = -1 - np.arange(selected.size, dtype="float32").reshape(selected.shape)
    if kind == 1:
        return values, convert(values)
    if kind == 2:
        values = values[..., :1] if selected.ndim else values
        return values, values
    row = selected.shape[1:]
    values = -1 - np.arange(int(np.prod(row)), dtype="float32").reshape(row)
    return values, convert(values)

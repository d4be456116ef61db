"""Covering arrays: few rows of values in which every pair (or triple) of values occurs.

A table has factors, and each factor its values; a row chooses one value of each factor. `cover`
draws rows greedily, as AETG does: a row begins with a tuple of values that is missing so far, and
each further factor, in random order, takes the value that adds the most missing tuples. `excluded`
is True for two values that never share a row. The same seed draws the same rows.

Sets of values are bit sets in integers, so counting missing tuples is a population count.
"""

import itertools
import random

TRIES = 40  # rows to draw for a tuple before it is treated as impossible


class Table:
    """Values of all factors, numbered from 0. `fits[i]` is the set of values that may share a row
    with value i, and `values[f]` lists the values of factor f."""

    def __init__(self, factors, excluded):
        self.names = [(factor, value) for factor in factors for value in factors[factor]]
        self.factor = [i for i, factor in enumerate(factors) for _ in factors[factor]]
        self.values = [[] for _ in factors]
        for i, factor in enumerate(self.factor):
            self.values[factor].append(i)
        self.fits = [0] * len(self.names)
        for i, j in itertools.combinations(range(len(self.names)), 2):
            if self.factor[i] != self.factor[j] and not (
                excluded(self.names[i], self.names[j]) or excluded(self.names[j], self.names[i])
            ):
                self.fits[i] |= 1 << j
                self.fits[j] |= 1 << i

    def row(self, numbers):
        """Returns the chosen values as {factor: value}, in the order of the factors."""
        return dict(self.names[i] for i in sorted(numbers))

    def complete(self, begun, gain, draw):
        """Returns a row that contains the values `begun`, or None if a factor has no value left.
        Each factor takes the value with the greatest `gain(value, chosen, set of chosen)`. A factor
        with a single value left is next, before another choice excludes that value."""
        chosen, mask, allowed = list(begun), 0, -1
        for i in begun:
            mask |= 1 << i
            allowed &= self.fits[i]
        taken = {self.factor[i] for i in begun}
        left = [
            [v for v in values if allowed >> v & 1]
            for f, values in enumerate(self.values)
            if f not in taken
        ]
        draw.shuffle(left)
        while left:
            at = min(range(len(left)), key=lambda i: min(len(left[i]), 2))
            candidates = left.pop(at)
            if not candidates:
                return None
            value = max(candidates, key=lambda v: gain(v, chosen, mask) + draw.random() / 2)
            chosen.append(value)
            mask |= 1 << value
            left = [[v for v in values if self.fits[value] >> v & 1] for values in left]
        return chosen


class Pairs:
    """Pairs of values that are not in any row yet."""

    def __init__(self, table):
        self.missing = list(table.fits)

    def left(self):
        """Yields each missing pair once."""
        for i, others in enumerate(self.missing):
            yield from ((i, j) for j in range(i + 1, len(self.missing)) if others >> j & 1)

    def has(self, pair):
        return self.missing[pair[0]] >> pair[1] & 1

    def gain(self, value, chosen, mask):
        return (self.missing[value] & mask).bit_count()

    def remove(self, values):
        mask = sum(1 << i for i in values)
        for i in values:
            self.missing[i] &= ~mask


class Triples:
    """Triples of values that fit pairwise and are not in any row yet."""

    def __init__(self, table):
        fits, count = table.fits, len(table.fits)
        self.missing = [
            [fits[i] & fits[j] if fits[i] >> j & 1 else 0 for j in range(count)]
            for i in range(count)
        ]

    def left(self):
        for i, rows in enumerate(self.missing):
            for j in range(i + 1, len(rows)):
                others = rows[j] >> (j + 1)
                yield from (
                    (i, j, j + 1 + k) for k in range(others.bit_length()) if others >> k & 1
                )

    def has(self, triple):
        i, j, k = triple
        return self.missing[i][j] >> k & 1

    def gain(self, value, chosen, mask):
        rows = self.missing[value]
        return sum((rows[i] & mask).bit_count() for i in chosen)

    def remove(self, values):
        mask = sum(1 << i for i in values)
        for i in values:
            rows = self.missing[i]
            for j in values:
                rows[j] &= ~mask


def cover(factors, excluded, strength, seed):
    """Returns rows that contain all tuples of `strength` (2 or 3) values, the number of these
    tuples, and the impossible tuples, which fit pairwise but are in no row that was drawn."""
    table, draw = Table(factors, excluded), random.Random(seed)
    missing = {2: Pairs, 3: Triples}[strength](table)
    wanted = list(missing.left())
    draw.shuffle(wanted)
    rows, impossible = [], []
    for begun in wanted:
        if not missing.has(begun):
            continue
        for _ in range(TRIES):
            row = table.complete(begun, missing.gain, draw)
            if row is not None:
                rows.append(table.row(row))
                missing.remove(row)
                break
        else:
            impossible.append(tuple(table.names[i] for i in begun))
            missing.remove(begun)
    return rows, len(wanted) - len(impossible), impossible

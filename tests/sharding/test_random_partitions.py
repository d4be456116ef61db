"""Random networks with random annotations (`programs/random_partitions.py`)."""

import pytest

from programs.random_blocks import check_many
from programs.random_partitions import Case


# Found by earlier seeds: partial sums along two axes (41), values that are cut twice along one axis
# (2149, 2275), and a GRU whose weight was overwritten (2915).
@pytest.mark.parametrize("seed", [*range(100), 2149, 2275, 2915])
def test_random_partitions(seed):
    Case(seed).check()


@pytest.mark.slow
def test_more_random_partitions():
    check_many(Case, 200, "random_partitions.py")

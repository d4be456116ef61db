"""Feature programs (`programs/feature_programs.py`) on devices of several ranks match eager
execution on one device of each rank, or raise an error on all ranks."""

import json
import os

import launching
import pytest

from programs.features.table import refused_rows
from programs.random_blocks import seed_of_tests

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(launching.SCRIPTS, "combinations.py")
QUICK_PARTS, PARTS = 60, 8


def findings(count, *arguments, timeout=100):
    """Returns the output of each rank."""
    done = launching.run(count, SCRIPT, *arguments, timeout=timeout, MPGLUON_RANKS_TIMEOUT="20")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    told = {line["rank"]: line["told"] for line in lines}
    assert set(told) == set(range(count)), done.stdout[-2000:] + done.stderr[-4000:]
    return told


def check(told):
    for rank, found in told.items():
        assert found["programs"] and not found["errors"], f"rank {rank}: {found['errors']}"


def test_pairs_of_features_on_ranks_match_eager_execution():
    check(findings(2, f"0/{QUICK_PARTS}"))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_more_pairs_of_features_on_ranks_match_eager_execution(count):
    seed = seed_of_tests()
    part = f"{seed % PARTS}/{PARTS}"
    print(f"mpirun -n {count} python ranks/scripts/combinations.py {part} {seed}")
    check(findings(count, part, str(seed), timeout=280))


def test_combinations_refused_on_ranks_raise_an_error_on_all_ranks():
    expected = refused_rows()
    for rank, found in findings(2, "refused").items():
        assert found["programs"] == len(expected) == len(found["errors"]), found["errors"]
        for (values, text), (chosen, error) in zip(expected, found["errors"]):
            assert values.items() >= chosen.items() and text in error, f"rank {rank}: {error}"

"""Networks that are partitioned over the devices of ranks compute the bits of one process."""

import json
import os

import pytest

from ranks import launching

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
PROGRAMS = os.path.join(launching.SCRIPTS, "partitioned_programs.py")


def bits_of(count):
    """Returns {program: bits} of each rank."""
    done = launching.run(count, PROGRAMS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    assert sorted(line["rank"] for line in lines) == list(range(count)), done.stdout
    return [line["bits"] for line in lines]


@pytest.fixture(scope="module")
def alone():
    return bits_of(1)[0]


# Two devices on each rank, or one.
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_partitions_over_ranks_have_the_bits_of_one_process(alone, count):
    assert not [bits for bits in alone.values() if len(bits) != 20], alone
    for found in bits_of(count):
        assert found.keys() == alone.keys()
        assert {name: bits for name, bits in found.items() if bits != alone[name]} == {}


def test_files_over_ranks_raise_on_all_ranks(tmp_path):
    done = launching.run(2, os.path.join(launching.SCRIPTS, "partitioned_files.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    assert sorted(line["rank"] for line in lines) == [0, 1]
    for line in lines:
        assert all("mx.parallel.save writes" in error for error in line["errors"]), line

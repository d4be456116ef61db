"""Programs over several ranks compute the same bits as in one process."""

import json
import os

import launching
import pytest

import mpgluon as mx

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
PROGRAMS = os.path.join(launching.SCRIPTS, "programs.py")


def bits_of(count, folder, **more):
    """Returns {program: bits} of each rank."""
    done = launching.run(count, PROGRAMS, CHECKPOINTS=str(folder), **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    assert sorted(line["rank"] for line in lines) == list(range(count)), done.stdout
    return [line["bits"] for line in lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return bits_of(1, tmp_path_factory.mktemp("alone"))[0]


def check(found_by_rank, alone):
    for found in found_by_rank:
        assert found.keys() == alone.keys()
        assert {
            name: (bits, alone[name]) for name, bits in found.items() if bits != alone[name]
        } == {}
    assert not [bits for bits in alone.values() if len(bits) != 20]


@pytest.mark.parametrize("count", [2] + [pytest.param(n, marks=pytest.mark.slow) for n in (3, 4)])
def test_ranks_give_the_bits_of_one_process(alone, count, tmp_path):
    check(bits_of(count, tmp_path), alone)


@pytest.mark.skipif(mx.num_gpus() < 4, reason="needs 4 GPUs, which may be logical ones")
def test_gpus_of_ranks_give_the_bits_of_one_process(tmp_path):
    more = {"DEVICE_TYPE": "gpu", "MPGLUON_COLLECTIVES": "local"}  # NCCL adds in a different order
    alone = bits_of(1, tmp_path / "alone", **more)[0]
    check(bits_of(2, tmp_path / "two", **more), alone)

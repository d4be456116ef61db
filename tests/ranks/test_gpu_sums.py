"""Sums over ranks of arrays on GPUs: by NCCL where each rank has a card of its own."""

import os

import launching
import pytest

import mpgluon as mx

pytestmark = [
    pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING)),
    pytest.mark.skipif(mx.num_gpus() < 1, reason="needs a GPU"),
]
# Each process of the stand-in has cards of its own; ranks of one machine may share one.
STAND_IN = "hostcuda" in os.environ.get("MPGLUON_CUDA_LIBRARY", "")


def check(count, name, *options, **more):
    options = ["apart"] if STAND_IN and not options else options
    done = launching.run(
        count, os.path.join(launching.SCRIPTS, "gpu_sums.py"), name, *options, **more
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert all(f"rank {rank}: {name} done" in done.stdout for rank in range(count))


@pytest.mark.parametrize("count", [2, 3])
def test_gpus_sum_with_the_bits_of_cpus(count):
    check(count, "bits_of_cpus")


def test_gpus_sum_in_any_order():
    check(3, "any_order", MPGLUON_RANKS_SUMS="mpi")


def test_all_reduce_of_gpus_of_ranks():
    check(3, "of_each_rank")


@pytest.mark.skipif(mx.num_gpus() < 2, reason="needs 2 GPUs of each rank")
def test_ranks_that_have_other_gpus():
    check(3, "mixed")


@pytest.mark.skipif(not STAND_IN, reason="needs a card for each rank")
def test_nccl_where_it_is_asked_for():
    check(2, "by_nccl", MPGLUON_COLLECTIVES="nccl")


def test_what_a_rank_cannot_give():
    check(3, "wrong")


@pytest.mark.skipif(not STAND_IN, reason="needs ranks that share a card, and that do not")
def test_ranks_that_share_a_card_sum_in_memory_of_the_host():
    check(2, "bits_of_cpus", "together", HOSTCUDA_SHARED_CARDS="1")
    check(2, "bits_of_cpus", "together", MPGLUON_COLLECTIVES="local")
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    more = {"HOSTCUDA_SHARED_CARDS": "1", "MPGLUON_COLLECTIVES": "nccl"}
    done = launching.run(2, script, "refused", **more)
    assert done.returncode != 0
    assert "NCCL cannot sum over ranks: ranks 0 and 1 are on the same GPU" in done.stderr


def test_what_a_gpu_finds_wrong_is_told_to_the_rank_that_it_sends_to():
    check(2, "failed_copy")


@pytest.mark.skipif(not STAND_IN, reason="breaks the stand-in's card")
def test_a_card_that_breaks_while_gpus_sum():
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    done = launching.run_to_the_end(2, script, "broken", MPGLUON_RANKS_TIMEOUT="20")
    for rank in range(2):
        told = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank}: ")]
        assert len(told) == 3 and "done" in told[2], done.stdout + done.stderr


def test_a_rank_that_stops_while_gpus_sum():
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    done = launching.run_to_the_end(2, script, "stopped", MPGLUON_RANKS_TIMEOUT="5")
    told = [line for line in done.stdout.splitlines() if line.startswith("rank 0: ")]
    assert "rank 1 has not responded for 5" in told[0], done.stdout + done.stderr
    assert len(told) >= 2

"""Sums over ranks of arrays on GPUs. NCCL computes them if each rank has its own card."""

import os

import launching
import pytest

import mpgluon as mx

pytestmark = [
    pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING)),
    pytest.mark.skipif(mx.num_gpus() < 1, reason="needs a GPU"),
]
# With the stand-in, each process has its own cards. Real ranks on one machine may share a card.
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


def test_gpu_sums_in_mpi_order_are_within_rounding_error():
    check(3, "any_order", MPGLUON_RANKS_SUMS="mpi")


def test_all_reduce_sums_arrays_on_gpus_of_all_ranks():
    check(3, "of_each_rank")


@pytest.mark.skipif(mx.num_gpus() < 2, reason="needs 2 GPUs of each rank")
def test_ranks_with_arrays_on_different_devices_get_same_sums():
    check(3, "mixed")


@pytest.mark.skipif(not STAND_IN, reason="needs a card for each rank")
def test_nccl_option_sums_gpu_arrays_and_rejects_cpu_arrays():
    check(2, "by_nccl", MPGLUON_COLLECTIVES="nccl")


def test_failed_or_mismatched_array_raises_error_on_all_ranks():
    check(3, "wrong")


@pytest.mark.skipif(not STAND_IN, reason="needs ranks that share a card, and that do not")
def test_ranks_that_share_a_card_sum_in_host_memory():
    check(2, "bits_of_cpus", "together", HOSTCUDA_SHARED_CARDS="1")
    check(2, "bits_of_cpus", "together", MPGLUON_COLLECTIVES="local")
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    more = {"HOSTCUDA_SHARED_CARDS": "1", "MPGLUON_COLLECTIVES": "nccl"}
    done = launching.run(2, script, "refused", **more)
    assert done.returncode != 0
    assert "NCCL cannot sum over ranks: ranks 0 and 1 are on the same GPU" in done.stderr


def test_gpu_error_is_raised_on_receiving_rank():
    check(2, "failed_copy")


@pytest.mark.skipif(not STAND_IN, reason="breaks the stand-in's card")
def test_broken_card_during_sums_raises_error_on_all_ranks():
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    done = launching.run_to_the_end(2, script, "broken", MPGLUON_RANKS_TIMEOUT="20")
    for rank in range(2):
        told = [line for line in done.stdout.splitlines() if line.startswith(f"rank {rank}: ")]
        assert len(told) == 3 and "done" in told[2], done.stdout + done.stderr


def test_stopped_rank_during_sums_is_named_in_error():
    script = os.path.join(launching.SCRIPTS, "gpu_sums.py")
    done = launching.run_to_the_end(2, script, "stopped", MPGLUON_RANKS_TIMEOUT="5")
    told = [line for line in done.stdout.splitlines() if line.startswith("rank 0: ")]
    assert "rank 1 has not responded for 5" in told[0], done.stdout + done.stderr
    assert len(told) >= 2

"""Data-parallel training with kvstores over ranks."""

import json
import os

import launching
import pytest

import mpgluon as mx

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))


def bits_of(count, parts, **more):
    """Returns {program: bits of its weights} of each rank."""
    done = launching.run(
        count, os.path.join(launching.SCRIPTS, "data_parallel.py"), str(parts), **more
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    return [
        {line["program"]: line["bits"] for line in lines if line["rank"] == rank}
        for rank in range(count)
    ]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_train_with_the_bits_of_replicas(count):
    (alone,) = bits_of(1, count)
    assert len(alone) >= 5 and len(set(alone.values())) == len(alone)
    assert bits_of(count, count) == [alone] * count


@pytest.mark.skipif(mx.num_gpus() < 2, reason="needs 2 GPUs, which may be logical ones")
def test_gpus_of_ranks_train_with_the_bits_of_replicas():
    # In one process, NCCL would add in a different order.
    (alone,) = bits_of(1, 2, DEVICE_TYPE="gpu", MPGLUON_COLLECTIVES="local")
    assert bits_of(2, 2, DEVICE_TYPE="gpu") == [alone] * 2


def test_dist_sync_kvstore_sums_updates_and_rejects_bad_calls():
    programs = ["push", "order", "optimizer", "rows", "compressed", "wrong", "failed_sum"]
    done = launching.run(3, os.path.join(launching.SCRIPTS, "kvstore_calls.py"), *programs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    for rank in range(3):
        for name in programs:
            assert f"rank {rank}: {name} done" in done.stdout


@pytest.mark.slow
def test_ranks_sums_option_selects_mpi_order_and_rejects_bad_value():
    script = os.path.join(launching.SCRIPTS, "kvstore_calls.py")
    done = launching.run(3, script, "any_order", MPGLUON_RANKS_SUMS="mpi")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    done = launching.run(2, script, "any_order", MPGLUON_RANKS_SUMS="soon")
    assert done.returncode != 0 and "MPGLUON_RANKS_SUMS is 'soon'" in done.stderr


def test_pushing_arrays_of_different_sizes_raises_error():
    done = launching.run(2, os.path.join(launching.SCRIPTS, "kvstore_calls.py"), "differs")
    assert done.returncode != 0
    assert "the ranks run different programs" in done.stderr and "20 bytes" in done.stderr


def test_dist_kvstore_error_without_mpi4py_names_pip_command(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no MPI here')")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import mpgluon as mx\n"
        "mx.kv.create('dist_sync')\n"
    )
    done = launching.run(1, str(script), PMI_RANK="0")
    assert done.returncode != 0
    assert "pip install mpgluon[mpi]" in done.stderr and "no MPI here" in done.stderr

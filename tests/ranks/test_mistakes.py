"""Ranks that differ, fail or disappear. All other ranks raise an error, and no process hangs."""

import os
import time

import launching
import pytest

from support.processes import output_of

needs_mpi = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
BEGINNINGS = os.path.join(launching.SCRIPTS, "beginnings.py")
SCRIPT = os.path.join(launching.SCRIPTS, "mistakes.py")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def run(how, count=2, script=SCRIPT, **settings):
    return launching.told(count, script, how, **settings)


@needs_mpi
def test_mistakes_raise_errors_on_all_ranks():
    told, done = run("tell")
    assert done.returncode == 0 and set(told) == {0, 1}, done.stdout + done.stderr
    first, second = told[0], told[1]
    for works in ("printing", "many_arrays", "branches_on_fetched_values"):
        assert first.pop(works) is None and second.pop(works) is None
    for found in (first, second):
        assert "rank 0: %4 = tanh(%3) : float32 (2, 4) cpu(0, rank=0)" in found["different_graphs"]
        assert "rank 1: %4 = relu(%3)" in found["different_graphs"]
        assert "mx.parallel.fetch(x)" in found["reading"]
        for branch in ("eager_branch", "hybridized_branch", "eager_loop"):
            assert "is on cpu(0, rank=0), so other ranks do not have" in found[branch]
        assert "rank 2 does not exist" in found["unknown_rank"]
        local = found["local_input_of_a_partition"]
        assert "is on cpu(0, rank=0), but the input is on cpu(0)" in local
        assert "the ranks have traced different graphs" in found["different_partitions"]
        assert "on cpu(0, rank=0)" in found["two_ranks_in_one_op"]
        assert "different programs" in found["different_counts"]
    assert "on rank 0:" in second["failed_work"]
    assert second["failed_work"].split("on rank 0: ")[1][:30] in first["failed_work"]


@needs_mpi
@pytest.mark.parametrize(
    "how, text",
    [
        ("raise", "rank 1 has failed: ArithmeticError: a mistake of rank 1"),
        slow("end", "rank 1 has ended without sending"),
        ("end before a graph", "rank 1 has ended, but rank 0 still waits for it ('a new graph')"),
        slow("stop", "rank 1 has not responded for"),
    ],
)
def test_lost_rank_is_named_in_error_on_remaining_rank(how, text):
    begin = time.monotonic()
    told, done = run(how, MPGLUON_RANKS_TIMEOUT="2")
    assert told.get(0) and text in told[0], done.stdout + done.stderr
    assert time.monotonic() - begin < 30
    assert not launching.processes_of(f"{SCRIPT} {how}"), "processes are left"


@needs_mpi
@pytest.mark.slow
def test_sender_is_released_if_receiving_rank_stops():
    told, done = run("full", MPGLUON_RANKS_TIMEOUT="5")
    assert told == {0: [2.0, 2.0]}, done.stdout + done.stderr
    assert not launching.processes_of(f"{SCRIPT} full"), "processes are left"


@needs_mpi
@pytest.mark.parametrize(
    "count, how", [(2, "transfers"), slow(2, "barrier"), slow(2, "sum"), slow(3, "sum")]
)
def test_deadlock_of_ranks_raises_error_on_all_ranks(count, how):
    """All ranks report the cycle of waits within the limit and some seconds for a busy machine."""
    told, done = run(how, count, MPGLUON_RANKS_TIMEOUT="6")
    assert sorted(told) == list(range(count)), done.stdout + done.stderr
    for rank, found in told.items():
        text = found["text"]
        assert text and "the ranks wait for one another" in text, (rank, text)
        assert "rank 1 waits for rank 0" in text and "rank 0 waits for rank 1" in text, text
        assert "mistakes.py:" in text and "at step 2" in text, text
        assert found["seconds"] < 12
    assert not launching.processes_of(f"{SCRIPT} {how}"), "processes are left"


@pytest.mark.slow
@needs_mpi
def test_busy_rank_is_reported_by_watchdog_without_error():
    told, done = run("busy", MPGLUON_RANKS_TIMEOUT="3", MPGLUON_WATCHDOG="1")
    assert told == {0: [3.0, 3.0], 1: [3.0, 3.0]}, done.stdout + done.stderr
    assert "mpgluon watchdog, rank 0: no device has finished anything for 1" in done.stderr
    assert "cpu(0, rank=1) waits for rank 1 to send: receive, queued at " in done.stderr


@needs_mpi
def test_failed_checkpoints_raise_on_all_ranks_and_allow_the_next(tmp_path):
    told, done = run("checkpoint errors", CHECKPOINTS=str(tmp_path))
    assert set(told) == {0, 1}, done.stdout + done.stderr
    failing = {"begin": 1, "generation": 0, "write": 1, "commit": 0, "read": 1}
    for step, rank in failing.items():
        own = "OSError: [Errno 28] No space left"
        who = "load" if step == "read" else "save"
        assert told[rank][step] == own
        assert told[1 - rank][step] == f"MXNetError: {who}: rank {rank} has failed: {own}"


@needs_mpi
def test_rank_without_devices_fetches_the_same_losses():
    told, done = run("idle", 3)
    assert len(set(map(str, told.values()))) == 1 and set(told) == {0, 1, 2}, done.stderr
    assert len(told[0]) == 3


@needs_mpi
@pytest.mark.parametrize(
    "how, text",
    [
        ("version", "different versions of mpgluon: "),
        slow("order", "different MPGLUON_RANKS_SUMS: ordered on rank 0, mpi on rank 1"),
        slow("limits", "different MPGLUON_RANKS_TIMEOUT: 20.0 on rank 0, 7.0 on rank 1"),
        slow("limit", "MPGLUON_RANKS_TIMEOUT is 'soon'"),
        slow("threads", "MPI_THREAD_MULTIPLE, but rank 1 has a lower level"),
    ],
)
def test_different_settings_raise_error_on_all_ranks(how, text):
    told, done = run(how, script=BEGINNINGS)
    assert set(told) == {0, 1} and done.returncode == 0, done.stdout + done.stderr
    for found in told.values():
        assert text in found


@pytest.mark.slow
@needs_mpi
def test_rank_that_never_starts_mpi_ends_program_within_limit():
    begin, beginnings = time.monotonic(), {"script": BEGINNINGS, "MPGLUON_RANKS_TIMEOUT": "2"}
    told, done = run("stop", launched=launching.run_to_the_end, **beginnings)
    assert told == {} and done.returncode != 0
    assert "MPI has not begun within 2 s" in done.stderr
    assert time.monotonic() - begin < 70
    assert not launching.processes_of(f"{BEGINNINGS} stop"), "processes are left"
    told, done = run("no_mpi", launched=launching.run_to_the_end, **beginnings)
    assert done.returncode != 0 and "pip install mpgluon[mpi]" in told[1]
    assert 0 not in told


@pytest.mark.slow
@needs_mpi
def test_rank_that_never_ends_mpi_ends_program_within_limit():
    told, done = run("never_ends", script=BEGINNINGS, MPGLUON_RANKS_TIMEOUT="2")
    assert told == {0: None, 1: None} and done.returncode != 0, done.stdout + done.stderr
    assert "MPI has not ended within 2 s" in done.stderr
    assert not launching.processes_of(f"{BEGINNINGS} never_ends"), "processes are left"


@pytest.mark.parametrize("bound, local, warned", [(1, 4, 1), (2, 4, 0), (1, 8, 0)])
def test_ranks_bound_to_a_single_core_raise_warning(monkeypatch, recwarn, bound, local, warned):
    from mpgluon._internal import ranks

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(bound)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(ranks, "_own", 0)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(local))
    ranks._warn_of_binding()
    texts = [str(one.message) for one in recwarn]
    assert len(texts) == warned and all("one of 8 cores" in text for text in texts)


def test_one_process_is_rank_0():
    assert output_of("""
        import sys
        import mpgluon as mx
        assert mx.cpu(1, rank=0) is mx.cpu(1) and mx.cpu(0).rank is None
        assert (mx.parallel.rank(), mx.parallel.num_ranks()) == (0, 1)
        mx.parallel.barrier()
        try:
            mx.cpu(0, rank=1)
        except ValueError as error:
            print(error)
        print("mpi4py" in sys.modules)
    """).splitlines() == [
        "rank 1 does not exist: this program is one process, rank 0; start it with mpirun -n 2 or "
        "more",
        "False",
    ]


def test_error_without_mpi4py_names_pip_command(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('no MPI here')")
    printed = output_of(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import mpgluon as mx
        try:
            mx.cpu(0, rank=1)
        except mx.MXNetError as error:
            print(error)
        """,
        PMI_RANK="0",
    )
    assert "pip install mpgluon[mpi]" in printed and "no MPI here" in printed


def test_invalid_ranks_timeout_raises_error():
    if launching.MISSING:
        pytest.skip(launching.MISSING)
    done = launching.run(2, SCRIPT, "tell", MPGLUON_RANKS_TIMEOUT="soon")
    assert done.returncode != 0 and "MPGLUON_RANKS_TIMEOUT is 'soon'" in done.stderr

"""Ranks that differ, fail or go away: all others get an error that says so, and nothing hangs."""

import glob
import json
import os
import time

import launching
import pytest

from support.processes import output_of

needs_mpi = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mistakes.py")


def run(how, **settings):
    done = launching.run(2, SCRIPT, how, **{"MPGLUON_RANKS_TIMEOUT": "20", **settings})
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    return {line["rank"]: line["told"] for line in lines}, done


def processes_of(text):
    """The command lines of running processes that have that text."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if text in command:
            found.append(command)
    return found


@needs_mpi
def test_all_ranks_are_told():
    told, done = run("tell")
    assert done.returncode == 0 and set(told) == {0, 1}, done.stdout + done.stderr
    first, second = told[0], told[1]
    for found in (first, second):
        assert "rank 0: %4 = tanh(%3) : float32 (2, 4) cpu(0, rank=0)" in found["different_graphs"]
        assert "rank 1: %4 = relu(%3)" in found["different_graphs"]
        assert "mx.parallel.fetch(x)" in found["reading"]
        assert "there is no rank 2" in found["unknown_rank"]
        assert "on cpu(0, rank=0)" in found["two_ranks_in_one_op"]
        assert "different programs" in found["different_counts"]
    assert first["different_sizes"] is None
    assert "expects" in second["different_sizes"] and "20 bytes" in second["different_sizes"]
    assert "on rank 0:" in second["failed_work"]
    assert second["failed_work"].split("on rank 0: ")[1][:30] in first["failed_work"]


@needs_mpi
@pytest.mark.parametrize(
    "how, text",
    [
        ("raise", "rank 1 has failed: ArithmeticError: a mistake of rank 1"),
        ("end", "rank 1 has ended, and has not sent"),
        ("stop", "nothing has been heard of rank 1 for"),
    ],
)
def test_a_rank_that_goes_away(how, text):
    begin = time.monotonic()
    told, done = run(how, MPGLUON_RANKS_TIMEOUT="2")
    assert told.get(0) and text in told[0], done.stdout + done.stderr
    assert time.monotonic() - begin < 30
    assert not processes_of(f"{SCRIPT} {how}"), "processes are left"


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
        "there is no rank 1: this program is one process, rank 0; start it with mpirun -n 2 or "
        "more",
        "False",
    ]


def test_without_mpi4py(tmp_path):
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


def test_a_limit_that_is_none():
    if launching.MISSING:
        pytest.skip(launching.MISSING)
    done = launching.run(2, SCRIPT, "tell", MPGLUON_RANKS_TIMEOUT="soon")
    assert done.returncode != 0 and "MPGLUON_RANKS_TIMEOUT is 'soon'" in done.stderr

"""Ranks that run different programs all raise an error that names both calls."""

import os

import launching
import pytest

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(launching.SCRIPTS, "differences.py")


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "how, texts",
    [
        (
            "order",
            [
                "rank 1 expects, as transfer 1, 12 bytes from cpu(0, rank=0) to cpu(0): float32 (3)"
                ", number 3 of the arrays created at ",
                "differences.py:",
                "but rank 0 sent, as transfer 1, 12 bytes",
                "number 1 of the arrays created at ",
            ],
        ),
        slow("lines", ["in lines, at", "number 1 of the arrays created at"]),
        slow("views", ["float32 (3), number 1"]),
        slow("shapes", ["float32 (2, 3)", "float32 (3, 2)"]),
        slow("dtypes", ["int32 (2)", "float32 (2)"]),
        slow("sizes", ["40 bytes", "40000 bytes"]),
        slow("parts", ["80000 bytes", "40 bytes"]),
        slow("graphs", ["copy 0 of compiled program"]),
        ("batches", ["rescale_grad 0.125", "rescale_grad 0.111111111"]),
        slow("rates", ["learning rate 0.1", "learning rate 1.1"]),
        slow("replicas", ["rescale_grad 0.125", "rescale_grad 0.111111111"]),
        slow("keys", ["sums over ranks, as transfer", "differences.py:"]),
        slow("roots", ["root_rank 0", "root_rank 1"]),
    ],
)
def test_different_programs_raise_error_on_all_ranks(how, texts):
    told, done = launching.told(2, SCRIPT, how)
    assert set(told) == {0, 1}, done.stdout + done.stderr
    for text in told.values():
        assert text and "the ranks run different programs" in text, done.stdout + done.stderr
        assert all(part in text for part in texts), text


def test_rank_may_branch_and_compute_by_itself(tmp_path):
    told, done = launching.told(2, SCRIPT, "no_difference", FOLDER=str(tmp_path))
    assert told == {0: None, 1: None} and done.returncode == 0, done.stdout + done.stderr

"""The end of a program on several ranks: queued work is finished, and differences are reported."""

import os

import launching
import pytest

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(launching.SCRIPTS, "ends.py")


@pytest.mark.slow
def test_queued_work_is_finished_before_exit():
    done = launching.run(2, SCRIPT, "unread")
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout + done.stderr
    assert "mpgluon, rank" not in done.stderr


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "how, texts",
    [
        (
            "left_out",
            [
                "rank 0 has queued 2 transfers between ranks, but rank 1 has queued 0",
                "rank 1 has queued 0 transfers between ranks, but rank 0 has queued 2",
            ],
        ),
        slow("other_root", ["rank 1 has received 0 of the 1 messages that rank 0 has sent to it"]),
        slow("failed", ["mpgluon, rank 0: pending work failed at the end of the program"]),
    ],
)
def test_exit_reports_unnoticed_differences_and_failures(how, texts):
    done = launching.run(2, SCRIPT, how, MPGLUON_RANKS_TIMEOUT="10")
    assert done.returncode != 0 and done.stdout.count("done") == 2, done.stdout + done.stderr
    assert all(text in done.stderr for text in texts), done.stderr

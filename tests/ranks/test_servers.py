"""The kvstore with servers, 'dist_async'."""

import os

import launching
import pytest

SCRIPT = os.path.join(launching.SCRIPTS, "served_calls.py")
pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))


@pytest.mark.parametrize("servers, ranks", [(1, 3), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_dist_async_servers_apply_updates_of_all_workers(servers, ranks):
    programs = ["pushed", "rows", "compressed", "module", "wrong"]
    done = launching.run(ranks, SCRIPT, *programs, DMLC_NUM_SERVER=str(servers))
    assert done.returncode == 0, done.stdout + done.stderr
    for program in programs:
        assert done.stdout.count(f"{program} done") == ranks - servers, done.stdout + done.stderr


def test_one_dist_async_worker_trains_as_without_servers():
    done = launching.run(2, SCRIPT, "one_worker")
    assert done.returncode == 0 and "one_worker done" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_failed_worker_ends_all_processes():
    done = launching.run(3, SCRIPT, "raises", MPGLUON_RANKS_TIMEOUT="10")
    assert done.returncode and "a mistake of a worker" in done.stderr, done.stdout + done.stderr
    assert "raises done" not in done.stdout
    assert not launching.processes_of(f"{SCRIPT} raises"), "processes are left"


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["2", "0", "-1", "many"])
def test_invalid_number_of_servers_raises_error(servers):
    done = launching.run(2, SCRIPT, "pushed", DMLC_NUM_SERVER=servers)
    assert done.returncode and "DMLC_NUM_SERVER" in done.stderr, done.stdout + done.stderr

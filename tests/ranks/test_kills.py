"""Ranks that are killed or stopped at random moments of training and saving. Checkpoints survive,
all processes end within the limit, and other numbers of ranks continue with the same bits."""

import os
import random
import shutil
import signal
import subprocess
import time

import launching
import pytest

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(launching.SCRIPTS, "killed.py")
KILLS = int(os.environ.get("MPGLUON_TEST_KILLS", "12"))
STEPS = 60
SILENT = 3  # seconds without a response after which a rank is treated as lost
LIMIT = 60  # seconds until all ranks have ended, on a busy machine


def lines(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().split("\n")[:-1]


def wait_until(condition, process, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def kill_one(folder, ranks, chance):
    """Starts ranks and kills or stops one. Returns the signal's name, the number of steps that were
    saved before the signal, and the seconds until the launcher had ended."""
    saved, begun = lines(folder, "saved"), len(lines(folder, "begun"))
    before, newest = len(saved), int(saved[-1]) if saved else 0
    if os.path.exists(os.path.join(folder, "processes")):
        os.remove(os.path.join(folder, "processes"))
    process = launching.start(ranks, SCRIPT, folder, str(STEPS), MPGLUON_RANKS_TIMEOUT=str(SILENT))
    try:
        wait_until(lambda: len(lines(folder, "processes")) == ranks, process)
        if chance.random() < 0.2:  # during startup
            time.sleep(chance.uniform(0, 4))
        else:
            after = before + chance.randrange(12)
            wait_until(lambda: len(lines(folder, "saved")) > after, process)
            time.sleep(chance.uniform(0, 0.03))
        how = chance.choice([signal.SIGKILL] * 3 + [signal.SIGSTOP])
        victim = chance.randrange(ranks)
        saved = len(lines(folder, "saved"))
        if process.poll() is None:
            try:
                os.kill(int(lines(folder, "processes")[victim]), how)
            except ProcessLookupError:
                pass  # the rank has already ended
        begin = time.monotonic()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            # Open MPI's launcher may hang before the first step. After all other ranks have ended,
            # it also waits for a rank that was stopped after it finalized MPI.
            last = lines(folder, "bits") and len(launching.processes_of(f"python {SCRIPT}")) < 2
            if len(lines(folder, "begun")) > begun and not last:
                raise
            launching.end_all(folder)
        seconds = time.monotonic() - begin
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 10
    while launching.processes_of(folder) and time.monotonic() < end:
        time.sleep(0.05)
    left = launching.processes_of(folder)
    assert not left, f"processes are left after {how.name}: {left}"
    assert all(int(step) >= newest for step in lines(folder, "begun")[begun:]), "a step was lost"
    return how.name, saved, seconds


@pytest.mark.slow
def test_training_survives_kills_at_random_moments(tmp_path):
    folder, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    os.mkdir(folder), os.mkdir(whole)
    done = launching.run(1, SCRIPT, whole, str(STEPS))
    assert done.returncode == 0, done.stderr
    chance, longest, finished = random.Random(int(os.environ.get("SEED", "7"))), {}, 0
    for number in range(KILLS):
        ranks = chance.choice([2, 2, 3, 4])
        how, saved, seconds = kill_one(folder, ranks, chance)
        longest[how] = max(longest.get(how, 0), seconds)
        newest = ([0] + [int(step) for step in lines(folder, "saved")[:saved]])[-1]
        done = None
        if number % 4 == 3 or lines(folder, "bits"):  # finish on a random number of ranks
            done = launching.run(chance.choice([1, 2, 3]), SCRIPT, folder, str(STEPS))
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            assert lines(folder, "bits")[-1:] == lines(whole, "bits"), f"kill {number}, {how}"
            assert int(lines(folder, "begun")[-1]) >= newest, "a checkpoint was lost"
            shutil.rmtree(folder)
            os.mkdir(folder)
            finished += 1
        print(f"kill {number}: {how} of {ranks} ranks, {newest} steps saved, {seconds:.1f} s")
    print(f"{KILLS} kills, {finished} restarts compared, longest end: {longest}")

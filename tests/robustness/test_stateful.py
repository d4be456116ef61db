"""Stateful random programs, whose seeds are printed: a short form of `make stateful`. Also tests
the poisoning of pool memory, on which they rely."""

import os
import subprocess
import sys

import pytest

from programs import stateful_training
from programs.random_blocks import seed_of_tests
from programs.stateful import ENGINES
from support.paths import TESTS
from support.processes import ended

PROGRAM = os.path.join(TESTS, "programs", "stateful.py")


def hunt(engine, minutes):
    options = f"--engine {engine} --minutes {minutes} --most 1 --shrink-seconds 20"
    options += f" --seed {seed_of_tests()}"
    command = [sys.executable, PROGRAM, *options.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["async", "shuffle"])
def test_short_random_programs_find_no_failure(engine):
    hunt(engine, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_long_random_programs_find_no_failure(engine):
    hunt(engine, 0.2)


@pytest.mark.parametrize("seconds", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_random_training_events_keep_the_bits(seconds):
    """Events move, save, load and copy the state at any time."""
    assert stateful_training.hunt(seconds, seed_of_tests()) == 0


def test_optimizers_count_updates_ahead_on_any_devices():
    """Layers whose weights were updated a different number of times move to two devices."""
    config = dict.fromkeys(("clip", "scaled", "schedule", "shard", "grouped", "numpy"), False)
    config |= {"optimizer": "nested", "accumulate": 1, "way": "states"}
    names = ("backward", "freeze", "step", "freeze", "place", "backward", "step")
    assert stateful_training.fault_of(config, [(name, 4) for name in names]) is None


def poisoned(program):
    return ended(program, MPGLUON_POOL_POISON="1", MPGLUON_ENGINE="async")


def test_freed_pool_memory_is_poisoned_with_nan():
    """Later readers of memory that was returned to a pool see NaN."""
    done = poisoned("""
        import mpgluon as mx
        x = mx.nd.ones((300,))
        x.wait_to_read()
        del x
        print(mx.nd.empty((300,)).asnumpy())
    """)
    assert done.returncode == 0 and "nan nan" in done.stdout and "1." not in done.stdout


def test_write_to_freed_pool_memory_is_detected():
    done = poisoned("""
        import ctypes
        import numpy as np
        import mpgluon as mx
        x = mx.nd.ones((300,))
        x.wait_to_read()
        memory = (ctypes.c_float * 300).from_address(np.from_dlpack(x).ctypes.data)
        del x
        memory[7] = 3
        mx.nd.ones((300,)).wait_to_read()
    """)
    assert done.returncode != 0 and "written after the block had been freed" in done.stderr

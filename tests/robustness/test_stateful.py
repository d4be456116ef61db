"""Stateful random programs, with fresh seeds that are printed: a little of what `make stateful`
does for hours. And what they rest on."""

import os
import subprocess
import sys

import pytest

from programs import stateful_training
from programs.stateful import ENGINES
from support.paths import TESTS
from support.processes import ended

PROGRAM = os.path.join(TESTS, "programs", "stateful.py")


def hunt(engine, minutes):
    options = f"--engine {engine} --minutes {minutes} --most 1 --shrink-seconds 20"
    command = [sys.executable, PROGRAM, *options.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["async", "shuffle"])
def test_random_programs(engine):
    hunt(engine, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_random_programs_for_a_while(engine):
    hunt(engine, 0.2)


@pytest.mark.parametrize("seconds", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_random_orders_of_events_in_training(seconds):
    """Moving, saving, loading and copying the state at any moment change no bit of training."""
    assert stateful_training.hunt(seconds, int.from_bytes(os.urandom(4), "big")) == 0


def poisoned(program):
    return ended(program, MPGLUON_POOL_POISON="1", MPGLUON_ENGINE="async")


def test_poisoned_pools():
    """What comes back to a pool is no number, for those who read it later, and may not be written
    to."""
    done = poisoned("""
        import mpgluon as mx
        x = mx.nd.ones((300,))
        x.wait_to_read()
        del x
        print(mx.nd.empty((300,)).asnumpy())
    """)
    assert done.returncode == 0 and "nan nan" in done.stdout and "1." not in done.stdout


def test_a_write_to_freed_memory_is_found():
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

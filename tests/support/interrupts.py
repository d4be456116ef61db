"""Ctrl-C at a chosen point of a function, and a sweep over all points."""

import dis
import functools
import os
import random
import sys

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon._internal import device_groups, graph_breaks
from mpgluon.gluon._compiled import running_statistics, tracing

# Interrupts affect a single process
os.register_at_fork(after_in_child=lambda: (sys.settrace(None), sys.setprofile(None)))
PACKAGE = os.path.dirname(mx.__file__) + os.sep


@functools.cache
def places_of(code):
    """Returns the instruction offsets at which the interpreter checks for signals.

    An interrupt after a call is raised here at the next instruction, so that instruction must have
    the same exception handlers as the call.
    """
    table = dis._parse_exception_table(code)

    def handlers(offset):
        return [entry.target for entry in table if entry.start <= offset < entry.end]

    places, former = set(), None
    for instruction in dis.get_instructions(code):
        call = (
            former is not None
            and former.opname.startswith("CALL")
            and "INTRINSIC" not in former.opname
        )
        if (
            instruction.opname.startswith("JUMP_BACKWARD")
            or call
            and handlers(former.offset) == handlers(instruction.offset)
        ):
            places.add(instruction.offset)
        former = instruction
    return places


def interrupted(work, n):
    """Runs `work` with an interrupt at its n-th point (0 for none). Returns the number of points
    reached."""
    places = 0

    def met():
        nonlocal places
        places += 1
        if places == n:
            raise KeyboardInterrupt

    # Python versions without exception tables: excludes points after calls of types and other
    # objects
    def watch(frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            met()

    def enter(frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        offsets = places_of(frame.f_code)

        def trace(frame, event, _):
            if event == "opcode" and frame.f_lasti in offsets:
                met()
            return trace

        met()
        return trace

    fine = hasattr(dis, "_parse_exception_table")
    former, former_hook = sys.gettrace(), sys.unraisablehook
    # pytest would keep the frames of an interrupt in a finalizer, and all objects they refer to.
    sys.unraisablehook = lambda ignored: (
        None if ignored.exc_type is KeyboardInterrupt else former_hook(ignored)
    )
    (sys.settrace if fine else sys.setprofile)(enter if fine else watch)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        (sys.settrace if fine else sys.setprofile)(former if fine else None)
        sys.unraisablehook = former_hook
    return places


def check_clean():
    """Asserts that no state scoped to a call is active."""
    assert tracing.current() is None
    assert graph_breaks.current() is None
    assert running_statistics.active() is None
    assert _core.swap_trace(None) is None
    assert not autograd.is_recording() and not autograd.is_training()
    assert _core.get_scope() == 0 and _core.get_steps() == 0 and _core.set_group(None) is None
    assert not device_groups.running() and device_groups.current() is None
    assert getattr(gluon.block._block._NameScope._current, "value", None) is None
    assert type(mx.name.NameManager.current()) is mx.name.NameManager
    assert mx.AttrScope.current().get(None) == {}
    assert mx.current_context() == mx.cpu(0) and not mx.util.is_np_shape()


def sweep(make, work, after, places):
    """Interrupts ``work(make())`` at about `places` points.

    Calls ``after(made)`` with the result of `make` after each interrupt.
    """
    for _ in range(2):
        count = interrupted(lambda thing=make(): work(thing), 0)
    stride = max(count / places, 1)
    number = random.Random(7).random() * stride
    while number < count:
        thing = make()
        interrupted(lambda: work(thing), int(number) + 1)
        check_clean()
        nd.waitall()
        after(thing)
        number += stride

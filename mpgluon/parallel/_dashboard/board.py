"""The dashboard, a context manager that draws a live view."""

from __future__ import annotations

import collections
import contextvars
import shutil
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ... import _core, ndarray as nd
from ...base import MXNetError
from .samples import Sampler
from .views import Snapshot, as_html, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from ...context import Context

_KEPT = 10_000  # maximum number of stored losses; if exceeded, every second loss is dropped
_PENDING = 256  # maximum number of losses that are not computed yet


class dashboard:
    """A live view of the devices while a ``with`` statement runs.

    It shows memory in use, the fraction of the last 5 seconds in which each device computed or
    waited for another one, current work (forward and backward passes of stages), and the loss. In a
    notebook, it is an output of the cell; on a terminal, a few lines that are redrawn. For other
    outputs, the final state is printed at the end. It ends with the statement, also after Ctrl-C or
    another error, which it does not suppress.

    One thread samples the devices' queues, at most fifty times a second and with at most 0.2 % of a
    core's time; another one draws. Small ops that run immediately in the calling thread are not
    visible. At the end, the view waits for the loss of the last step, except after an error.

    Parameters
    ----------
    devices : list of Context, optional
        Devices to show; by default all that have been used.
    refresh : float, default 1.0
        Seconds between two redraws.
    file : file, optional
        File for a terminal's lines; defaults to ``sys.stderr``.

    Raises
    ------
    ValueError
        If `refresh` is not positive.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO()
    >>> with mx.parallel.dashboard([mx.cpu(0)], file=file) as board:
    ...     for _ in range(3):
    ...         board.update(nd.ones(4))
    ...
    >>> "3 steps" in file.getvalue() and "loss 1 in step 3" in file.getvalue()
    True
    """

    def __init__(
        self,
        devices: Sequence[Context] | None = None,
        refresh: float = 1.0,
        file: TextIO | None = None,
    ) -> None:
        if not refresh > 0:
            raise ValueError(f"dashboard: refresh must be a number above 0, got {refresh!r}")
        self._devices = None if devices is None else list(devices)
        self._refresh, self._file = refresh, file
        self._steps = 0
        self._pending: collections.deque[tuple[int, Any]] = collections.deque(maxlen=_PENDING)
        self._losses: list[tuple[int, float]] = []
        self._ended: threading.Event | None = None
        self._failure: BaseException | None = None
        self._painted = 0.0

    def update(self, loss: Any = None) -> None:
        """Counts a step.

        Parameters
        ----------
        loss : NDArray, list of NDArray or float, optional
            Losses of the step, whose mean is shown. The call does not wait for them: each redraw
            reads the latest ones that are ready.
        """
        self._steps += 1
        if loss is not None:
            self._pending.append((self._steps, loss))

    def cpu_seconds(self) -> float:
        """Returns the processor time used by the view so far, in seconds."""
        return self._painted + self._sampler.used

    def __enter__(self) -> Self:
        if self._ended is not None:
            raise MXNetError("dashboard: a dashboard can be entered only once; create another one")
        self._begun = time.perf_counter()
        self._show = _notebook() or _stream(self._file or sys.stderr)
        self._ended, self._sampler = threading.Event(), Sampler()
        # Run in a copy of the caller's context, because a notebook shows output in the cell of the
        # thread's context.
        self._painter = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._paint,),
            name="mpgluon dashboard painter",
            daemon=True,
        )
        self._sampler.start()
        self._painter.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._ended is not None
        self._ended.set()
        self._painter.join(5)  # at most 5 s, because the thread may wait for a loss
        self._sampler.end()
        if not self._painter.is_alive():
            self._draw("" if kind is None else f"ended by {kind.__name__}", last=True)
        if self._failure is not None:
            warnings.warn(
                f"the dashboard cannot be drawn: {type(self._failure).__name__}: {self._failure}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _paint(self):
        while not self._ended.wait(self._refresh) and self._failure is None:
            self._draw()
            self._painted = time.thread_time()

    def _draw(self, ended="", last=False):
        """Reads the latest loss and redraws the view. An error of the output, such as a closed
        file, ends the drawing but not the program."""
        if self._failure is not None:
            return
        try:
            if not (last and ended):  # after an error, the loss may never be ready
                self._read_loss(wait=last)
            views = self._sampler.views(self._devices)
            seconds = time.perf_counter() - self._begun
            self._show(Snapshot(seconds, self._steps, list(self._losses), views, ended), last)
        except Exception as error:
            self._failure = error

    def _read_loss(self, wait):
        """Reads the latest loss that is ready. With `wait`, waits for the last one."""
        done = None if wait else {str(entry[0]): entry[1] for entry in _core.engine_queue_status()}
        latest = None
        while self._pending and (done is None or _ready(self._pending[0][1], done)):
            latest = self._pending.popleft()
        if latest is None:
            return
        step, loss = latest
        try:
            value = _mean(loss)
        except MXNetError:  # the work failed; the user's program gets the error when it waits
            return
        self._losses.append((step, value))
        if len(self._losses) > _KEPT:
            del self._losses[1:-1:2]


def _ready(loss, done):
    """True if reading a loss does not wait, given the ticks that devices have completed."""
    if isinstance(loss, (list, tuple)):
        return all(_ready(one, done) for one in loss)
    if not isinstance(loss, nd.NDArray):
        return True
    return _core.written_at(loss)[0] <= done.get(str(loss.context), 0)


def _mean(loss):
    if isinstance(loss, (list, tuple)):
        return sum(map(_mean, loss))
    return float(np.mean(loss.asnumpy() if isinstance(loss, nd.NDArray) else loss))


def _notebook() -> Callable[[Snapshot, bool], None] | None:
    """Returns a function that shows snapshots in an output of the notebook's cell, or None outside
    of notebooks."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)

    def show(snapshot: Snapshot, last: bool) -> None:
        handle.update(HTML(as_html(snapshot)))

    return show


def _stream(file: TextIO) -> Callable[[Snapshot, bool], None]:
    """Returns a function that shows snapshots in a file. On a terminal, each replaces the previous
    one; in any other file, only the last is written."""
    terminal = file.isatty()
    drawn = 0

    def show(snapshot: Snapshot, last: bool) -> None:
        nonlocal drawn
        if not (terminal or last):
            return
        width = shutil.get_terminal_size().columns if terminal else 100
        lines = as_text(snapshot, max(width, 40))
        back = f"\x1b[{drawn}F\x1b[J" if drawn else ""
        file.write(back + "\n".join(lines) + "\n")
        file.flush()
        drawn = len(lines)

    return show

"""The dashboard itself: it begins and ends with a ``with`` statement."""

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

_KEPT = 10_000  # losses; beyond, every other one is dropped
_PENDING = 256  # losses of steps that are queued


class dashboard:
    """A live view of the devices while a ``with`` statement runs: memory in use, the share of the
    last 5 seconds in which they computed or waited for each other, what they were at (stages'
    forward and backward passes), and the loss. In a notebook it is an output of the cell, on a
    terminal a few lines that are drawn again; where the output is neither, the last state is
    printed at the end. It ends with the statement, also by Ctrl-C or another error, which it lets
    pass.

    Two threads look at the devices' queues, fifty times a second and for at most 0.2 % of a core's
    time, and draw. Small ops that run at once in the calling thread are not seen. At the end,
    unless that is an error, the loss of the last step is waited for.

    Parameters
    ----------
    devices : list of Context, optional
        Those to show; by default all that have been used.
    refresh : float, default 1.0
        Seconds between two drawings.
    file : file, optional
        Where a terminal's lines go, by default ``sys.stderr``.

    Raises
    ------
    ValueError
        `refresh` is not positive.

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
            The losses of the step, whose mean is shown. Nothing waits here: each drawing reads the
            latest ones that are ready.
        """
        self._steps += 1
        if loss is not None:
            self._pending.append((self._steps, loss))

    def cpu_seconds(self) -> float:
        """Returns the processor time that the view itself has taken so far."""
        return self._painted + self._sampler.used

    def __enter__(self) -> Self:
        if self._ended is not None:
            raise MXNetError("dashboard: a dashboard is entered once; make another one")
        self._begun = time.perf_counter()
        self._show = _notebook() or _stream(self._file or sys.stderr)
        self._ended, self._sampler = threading.Event(), Sampler()
        # In a notebook, output belongs to the cell whose context a thread has.
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
        self._painter.join(5)  # it may wait for a loss
        self._sampler.end()
        if not self._painter.is_alive():
            self._draw("" if kind is None else f"ended by {kind.__name__}", last=True)
        if self._failure is not None:
            warnings.warn(
                f"the dashboard could not be drawn: {type(self._failure).__name__}: "
                f"{self._failure}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _paint(self):
        while not self._ended.wait(self._refresh) and self._failure is None:
            self._draw()
            self._painted = time.thread_time()

    def _draw(self, ended="", last=False):
        """Reads the latest loss and shows everything. An output that is closed ends the drawing,
        not the program."""
        if self._failure is not None:
            return
        try:
            if not (last and ended):  # after an error there may be nothing to wait for
                self._read_loss(wait=last)
            views = self._sampler.views(self._devices)
            seconds = time.perf_counter() - self._begun
            self._show(Snapshot(seconds, self._steps, list(self._losses), views, ended), last)
        except Exception as error:
            self._failure = error

    def _read_loss(self, wait):
        """Reads the latest losses of those that are ready, or with `wait` of all."""
        done = None if wait else {str(entry[0]): entry[1] for entry in _core.engine_queue_status()}
        latest = None
        while self._pending and (done is None or _ready(self._pending[0][1], done)):
            latest = self._pending.popleft()
        if latest is None:
            return
        step, loss = latest
        try:
            value = _mean(loss)
        except MXNetError:  # of the work that gives it: the program meets it where it waits
            return
        self._losses.append((step, value))
        if len(self._losses) > _KEPT:
            del self._losses[1:-1:2]


def _ready(loss, done):
    """True if reading it waits for nothing, given the ticks that devices have completed."""
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
    """Shows snapshots in an output of the notebook's cell; None outside of notebooks."""
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
    """Shows snapshots on a terminal, each in the place of the one before; in any other file only
    the last."""
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

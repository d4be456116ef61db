"""`Monitor`: periodic statistics of the arrays in executors."""

from __future__ import annotations

import logging
import re
from math import sqrt
from typing import TYPE_CHECKING

from mpgluon import ndarray as nd

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpgluon._core import NDArray
    from mpgluon.executor import Executor


__all__ = ["Monitor"]


def _mean_size(array):
    """Returns the root mean square."""
    return nd.norm(array) / sqrt(array.size)


class Monitor:
    """Computes a statistic of the outputs and parameters of executors.

    Parameters
    ----------
    interval : int
        Batches from one monitored batch to the next. During a monitored batch, executors run node
        by node.
    stat_func : function, optional
        Maps an NDArray to an NDArray or a list of them; the default is the root mean square.
    pattern : str, default '.*'
        A regular expression; names are monitored if it matches at their start.
    sort : bool, default False
        True to sort the results by name.
    monitor_all : bool, default False
        True to monitor the inputs of nodes as well.

    Examples
    --------
    >>> monitor = mx.monitor.Monitor(1, lambda x: x.max())
    >>> relu = mx.sym.relu(mx.sym.var("x"), name="r")
    >>> executor = relu.bind(mx.cpu(), {"x": nd.array([1, 2])})
    >>> monitor.install(executor)
    >>> monitor.tic()
    >>> _ = executor.forward()
    >>> [(step, name) for step, name, _ in monitor.toc()]
    [(1, 'r_output'), (1, 'x')]
    """

    def __init__(
        self,
        interval: int,
        stat_func: Callable[[NDArray], Any] | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        self.interval = interval
        self.stat_func: Callable[[NDArray], Any] = stat_func or _mean_size
        self.sort = sort
        self.monitor_all = monitor_all
        self.activated: bool = False
        self.queue: list[tuple[int, str, Any]] = []
        self.step: int = 0
        self.exes: list[Executor] = []
        self.re_pattern: re.Pattern[str] = re.compile(pattern)
        self.logger: logging.Logger = logging.getLogger(__name__)

    def stat_helper(self, name: str, array: NDArray) -> None:
        """Records the statistic of an array; executors call it with every array."""
        if self.activated and self.re_pattern.match(name):
            self.queue.append((self.step, name, self.stat_func(array)))

    def install(self, exe: Executor, monitor_all: bool | None = None) -> None:
        """Monitors an executor."""
        exe.set_monitor_callback(
            self.stat_helper, self.monitor_all if monitor_all is None else monitor_all
        )
        self.exes.append(exe)

    def tic(self) -> None:
        """Starts monitoring if this batch is due; call it before forward."""
        if self.step % self.interval == 0:
            self.queue = []
            self.activated = True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """Ends monitoring; call it after the update.

        Returns a list of (batch, name, statistic as text).
        """
        if not self.activated:
            return []
        for exe in self.exes:
            for arrays in (exe.arg_dict, exe.aux_dict):
                for name, array in arrays.items():
                    if self.re_pattern.match(name):
                        self.queue.append((self.step, name, self.stat_func(array)))
        self.activated = False
        found = sorted(self.queue, key=lambda one: one[1]) if self.sort else self.queue
        self.queue = []
        results = []
        for step, name, value in found:
            values = value if isinstance(value, (list, tuple)) else [value]
            if not all(isinstance(one, nd.NDArray) for one in values):
                raise TypeError(
                    f"Monitor: stat_func must return NDArrays, not {type(values[0]).__name__}"
                )
            results.append(
                (
                    step,
                    name,
                    "".join(
                        f"{one.asscalar() if one.size == 1 else one.asnumpy()}\t" for one in values
                    ),
                )
            )
        return results

    def toc_print(self) -> None:
        """Calls `toc` and logs the results."""
        for step, name, text in self.toc():
            self.logger.info("Batch: %7d %30s %s", step, name, text)

"""Events of a training loop: the base classes of handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._internal.hints import constructed

if TYPE_CHECKING:
    from typing import Any

    from .estimator import Estimator


__all__ = [
    "BatchBegin",
    "BatchEnd",
    "EpochBegin",
    "EpochEnd",
    "EventHandler",
    "TrainBegin",
    "TrainEnd",
    "check_event_handlers",
]


class EventHandler:
    """Base class of all handlers.

    Examples
    --------
    >>> from mpgluon.gluon.contrib.estimator.event_handler import EventHandler
    >>> issubclass(gluon.contrib.estimator.TrainEnd, EventHandler)
    True
    """

    def __repr__(self) -> str:
        return constructed(self)


def check_event_handlers(handlers: Any) -> list[EventHandler]:
    """Returns a list of handlers, given one handler, several, or None. Raises ValueError for other
    values."""
    handlers = [handlers] if isinstance(handlers, EventHandler) else list(handlers or [])
    if not all(isinstance(handler, EventHandler) for handler in handlers):
        raise ValueError(f"handlers must be an EventHandler or a list of them, got {handlers}")
    return handlers


class TrainBegin(EventHandler):
    """Base class of handlers with a `train_begin` method.

    Examples
    --------
    >>> class Greeting(gluon.contrib.estimator.TrainBegin):
    ...     def train_begin(self, estimator, *args, **kwargs):
    ...         print("here we go")
    """

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Called before the first epoch."""


class TrainEnd(EventHandler):
    """Base class of handlers with a `train_end` method.

    Examples
    --------
    >>> class Save(gluon.contrib.estimator.TrainEnd):
    ...     def train_end(self, estimator, *args, **kwargs):
    ...         estimator.net.save_parameters("net.params")
    """

    def train_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Called after the last epoch."""


class EpochBegin(EventHandler):
    """Base class of handlers with an `epoch_begin` method.

    Examples
    --------
    >>> class Decay(gluon.contrib.estimator.EpochBegin):
    ...     def epoch_begin(self, estimator, *args, **kwargs):
    ...         estimator.trainer.set_learning_rate(estimator.trainer.learning_rate / 2)
    """

    def epoch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Called before each epoch and before an evaluation."""


class EpochEnd(EventHandler):
    """Base class of handlers with an `epoch_end` method.

    Examples
    --------
    >>> class OneEpoch(gluon.contrib.estimator.EpochEnd):
    ...     def epoch_end(self, estimator, *args, **kwargs):
    ...         return True
    """

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> bool | None:
        """Called after each epoch and after an evaluation. Returns True to end training."""
        return False


class BatchBegin(EventHandler):
    """Base class of handlers with a `batch_begin` method.

    Examples
    --------
    >>> class Count(gluon.contrib.estimator.BatchBegin):
    ...     samples = 0
    ...     def batch_begin(self, estimator, *args, **kwargs):
    ...         self.samples += len(kwargs["batch"][0])
    """

    def batch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Called before each batch with the keyword ``batch``."""


class BatchEnd(EventHandler):
    """Base class of handlers with a `batch_end` method.

    Examples
    --------
    >>> class Losses(gluon.contrib.estimator.BatchEnd):
    ...     def batch_end(self, estimator, *args, **kwargs):
    ...         print([float(loss.mean().asscalar()) for loss in kwargs["loss"]])
    """

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> bool | None:
        """Called after each batch with the keywords ``batch``, ``pred``, ``label`` and ``loss``.
        The last three are lists with an array for each device. Returns True to end the epoch."""
        return False

"""Loggers with short, colored lines."""

from __future__ import annotations

import logging
import sys

__all__ = ["get_logger", "getLogger", "CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"]

CRITICAL = logging.CRITICAL
ERROR = logging.ERROR
WARNING = logging.WARNING
INFO = logging.INFO
DEBUG = logging.DEBUG
NOTSET = logging.NOTSET

_LETTERS = {DEBUG: "D", INFO: "I", WARNING: "W", ERROR: "E", CRITICAL: "C"}
_COLOURS = {
    DEBUG: "\x1b[32m",
    INFO: "\x1b[32m",
    WARNING: "\x1b[33m",
    ERROR: "\x1b[31m",
    CRITICAL: "\x1b[31m",
}


class _Formatter(logging.Formatter):
    """`I 0131 12:00:00 1234 file:function:12] text`, with the prefix colored on a terminal."""

    def __init__(self, colour):
        super().__init__(datefmt="%m%d %H:%M:%S")
        self._colour = colour

    def formatMessage(self, record):
        head = (
            f"{_LETTERS.get(record.levelno, 'U')} {record.asctime} {record.process} "
            f"{record.filename}:{record.funcName}:{record.lineno}]"
        )
        if self._colour:
            head = f"{_COLOURS.get(record.levelno, '')}{head}\x1b[0m"
        return f"{head} {record.message}"

    def usesTime(self):
        return True


def get_logger(
    name: str | None = None,
    filename: str | None = None,
    filemode: str | None = None,
    level: int = WARNING,
) -> logging.Logger:
    """Returns a logger that writes to standard error, or to `filename`.

    The file is opened with `filemode` (default "a"). The first call for a name sets up the logger;
    later calls return it unchanged.

    Examples
    --------
    >>> mx.log.get_logger("training", level=mx.log.INFO).name
    'training'
    """
    logger = logging.getLogger(name)
    if name is not None and not getattr(logger, "_mpgluon_ready", False):
        if filename:
            handler = logging.FileHandler(filename, filemode or "a")
            handler.setFormatter(_Formatter(False))
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(_Formatter(sys.stderr is not None and sys.stderr.isatty()))
        logger.addHandler(handler)
        logger.setLevel(level)
        logger._mpgluon_ready = True
    return logger


getLogger = get_logger

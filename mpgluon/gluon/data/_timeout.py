"""The error of a DataLoader that has waited for too long."""

import multiprocessing


class LoaderTimeoutError(TimeoutError, multiprocessing.TimeoutError):
    """No batch arrived in time: a TimeoutError of Python and of multiprocessing, which MXNet's
    is.

    Parameters
    ----------
    timeout : float
        How many seconds were waited.
    culprit : str
        Who may hang.
    """

    def __init__(self, timeout: float, culprit: str) -> None:
        super().__init__(
            f"DataLoader: no batch arrived within {timeout} s; loading is slower than that "
            f"(raise timeout=), or {culprit} hangs"
        )
        self.timeout, self.culprit = timeout, culprit

    def __reduce__(self) -> tuple[type, tuple[float, str]]:
        return type(self), (self.timeout, self.culprit)

"""The timeout error of a DataLoader."""

import multiprocessing


class LoaderTimeoutError(TimeoutError, multiprocessing.TimeoutError):
    """No batch arrived in time. Inherits from Python's TimeoutError and, for compatibility with
    MXNet, from multiprocessing's.

    Parameters
    ----------
    timeout : float
        Seconds waited.
    culprit : str
        The component that may be blocked.
    """

    def __init__(self, timeout: float, culprit: str) -> None:
        super().__init__(
            f"DataLoader: no batch arrived within {timeout} s; loading is too slow (increase "
            f"timeout=), or {culprit} hangs"
        )
        self.timeout, self.culprit = timeout, culprit

    def __reduce__(self) -> tuple[type, tuple[float, str]]:
        return type(self), (self.timeout, self.culprit)

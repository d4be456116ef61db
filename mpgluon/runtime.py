"""The optional features that the library was built with or detected."""

from __future__ import annotations

import importlib.util

from . import _core

__all__ = ["Feature", "Features", "feature_list"]


class Feature:
    """An optional feature, with its ``name`` and ``enabled``.

    Examples
    --------
    >>> mx.runtime.Feature("OPENMP", True)
    ✔ OPENMP
    """

    def __init__(self, name: str, enabled: bool) -> None:
        self._name, self._enabled = name, bool(enabled)

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self._name

    @property
    def enabled(self) -> bool:
        """True if the feature is available."""
        return self._enabled

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


def _features():
    info = _core.build_info()
    libraries = {library["name"]: library["found"] for library in _core.libraries()}
    gpus = _core.num_gpus() > 0
    vectors = info["isa"] != "base"
    return {
        "CUDA": gpus,
        "CUDNN": gpus,
        "NCCL": gpus,
        "CUDA_RTC": gpus,
        "TENSORRT": False,
        "CPU_SSE": True,
        "CPU_SSE2": True,
        "CPU_SSE3": vectors,
        "CPU_SSE4_1": vectors,
        "CPU_SSE4_2": vectors,
        "CPU_SSE4A": False,
        "CPU_AVX": vectors,
        "CPU_AVX2": vectors,
        "OPENMP": True,
        "SSE": True,
        "F16C": vectors,
        "JEMALLOC": False,
        "BLAS_OPEN": libraries.get("OpenBLAS", False),
        "BLAS_ATLAS": False,
        "BLAS_MKL": False,
        "BLAS_APPLE": False,
        "LAPACK": libraries.get("OpenBLAS", False),
        "MKLDNN": libraries.get("oneDNN", False),
        "ONEDNN": libraries.get("oneDNN", False),
        "OPENCV": False,
        "CAFFE": False,
        "PROFILER": True,
        "DIST_KVSTORE": importlib.util.find_spec("mpi4py") is not None,
        "CXX14": False,
        "INT64_TENSOR_SIZE": True,
        "SIGNAL_HANDLER": False,
        "DEBUG": info["debug"],
        "TVM_OP": False,
    }


def feature_list() -> list[Feature]:
    """Returns a list of every `Feature`.

    Examples
    --------
    >>> [feature for feature in mx.runtime.feature_list() if feature.name == "OPENMP"]
    [✔ OPENMP]
    """
    return [Feature(name, enabled) for name, enabled in _features().items()]


class Features(dict[str, Feature]):
    """The features by name, a singleton dict.

    Examples
    --------
    >>> mx.runtime.Features().is_enabled("openmp")
    True
    """

    _instance: Features | None = None

    def __new__(cls) -> Features:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.update((feature.name, feature) for feature in feature_list())
        return cls._instance

    def __init__(self) -> None:
        """Does nothing: `__new__` has filled the dict."""

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        """True if the feature is available; the case of the name is ignored.

        Raises RuntimeError for an unknown name.
        """
        name = feature_name.upper()
        if name not in self:
            raise RuntimeError(
                f"unknown feature {feature_name!r}; expected one of {', '.join(self)}"
            )
        return self[name].enabled

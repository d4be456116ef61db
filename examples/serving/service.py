"""The BentoML service. `serve.py` starts it and configures it by environment variables, because
BentoML runs it in a separate process."""

from __future__ import annotations

import os
from typing import Annotated

import bentoml
import model
import numpy as np
from bentoml.validators import DType
from pydantic import AfterValidator

import mpgluon as mx
from common import device

BATCH = 64  # maximum number of rows
LARGEST = 1e6  # largest input, so that scores are finite
MAX_LATENCY = 500  # milliseconds; a request that would take longer is answered with 503


def checked(pictures: np.ndarray) -> np.ndarray:
    """Rejects an invalid request before it is batched with others."""
    if pictures.ndim != 2 or pictures.shape[1] != model.INPUTS or not 1 <= len(pictures) <= BATCH:
        raise ValueError(f"pictures: 1 to {BATCH} rows of {model.INPUTS} numbers")
    if not (np.abs(pictures) <= LARGEST).all():
        raise ValueError(f"pictures: numbers are -{LARGEST:g} to {LARGEST:g}")
    return pictures


Pictures = Annotated[np.ndarray, DType("float32"), AfterValidator(checked)]


@bentoml.service(workers=1, traffic={"timeout": 30})
class Classifier:
    """Scores images; concurrent requests form one batch."""

    def __init__(self) -> None:
        path, names = os.environ["SERVED_PARAMETERS"], os.environ["SERVED_DEVICES"]
        cores = len(os.sched_getaffinity(0))
        if names == "torch":
            self.predict = model.by_torch(path, cores)
        else:
            devices = [device(name) for name in names.split()]
            mx.context.set_threads(max(1, cores // len(devices)))
            self.predict = model.over_devices(path, devices)

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=MAX_LATENCY)
    def classify(self, pictures: Pictures) -> np.ndarray:
        return self.predict(pictures)

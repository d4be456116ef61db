"""Training over several devices in one process: pipelines, and layers split over devices."""

from . import schedules
from .collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scatter
from .pipeline import Pipeline
from .report import Report
from .schedules import ScheduleError
from .train_step import TrainStep

__all__ = [
    "Pipeline", "Report", "ScheduleError", "TrainStep", "all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter", "schedules",
]  # fmt: skip

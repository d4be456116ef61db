"""Training over several devices in one process: pipelines."""

from . import schedules
from .pipeline import Pipeline
from .report import Report
from .schedules import ScheduleError
from .train_step import TrainStep

__all__ = ["Pipeline", "Report", "ScheduleError", "TrainStep", "schedules"]

"""Training over several devices in one process: pipelines, layers split over devices, replicas, all of these on a mesh, and a planner."""

from . import schedules
from .attention import ParallelSelfAttention, SequenceParallelDropout, SequenceParallelLayerNorm
from .check import check_against_single_device
from .checkpoint import Saving, load, save
from .clip import clip_global_norm
from .collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scatter
from .heads import ParallelHeads
from .layer_profile import Profile
from .layers import ColumnParallelDense, ParallelConv2D, RowParallelDense, VocabParallelEmbedding, VocabParallelSoftmaxCELoss
from .mesh import Mesh
from .pipeline import Pipeline
from .planner import Plan, plan
from .recurrent import ParallelLSTM
from .report import Report
from .schedules import ScheduleError
from .shards import HomeParameter, ShardedParameter
from .splitting import shard
from .train_step import TrainStep

__all__ = [
    "ColumnParallelDense", "HomeParameter", "Mesh", "ParallelConv2D", "ParallelHeads", "ParallelLSTM", "ParallelSelfAttention", "Pipeline", "Plan", "Profile",
    "Report", "RowParallelDense", "Saving", "ScheduleError", "SequenceParallelDropout", "SequenceParallelLayerNorm", "ShardedParameter", "TrainStep", "VocabParallelEmbedding",
    "VocabParallelSoftmaxCELoss", "all_gather", "all_reduce", "all_to_all", "broadcast", "check_against_single_device", "clip_global_norm", "gather",
    "load", "plan", "reduce", "reduce_scatter", "save", "scatter", "schedules", "shard",
]  # fmt: skip


def __dir__():
    return __all__

"""Training over several devices: pipelines, tensor parallelism, data parallelism, meshes that
combine them, and a planner."""

from __future__ import annotations

from . import schedules
from ._checkpoint import Saving, load, save
from ._dashboard.board import dashboard
from ._data_parallel import DistributedTrainer, broadcast_parameters
from ._dividing import divide
from ._gradient_clipping import clip_global_norm
from ._mesh import Mesh
from ._pipeline.pipeline import Pipeline
from ._pipeline.report import Report
from ._pipeline.train_step import TrainStep
from ._planner.cluster import Cluster, ClusterSimulation, simulate
from ._planner.layer_profile import Profile
from ._planner.layouts import Layout, Layouts, layouts
from ._planner.plan import Plan, plan
from ._ranks import barrier, fetch, num_ranks, rank
from ._single_device_check import check_against_single_device
from ._tensor_parallel.attention import (
    ParallelSelfAttention,
    SequenceParallelDropout,
    SequenceParallelLayerNorm,
)
from ._tensor_parallel.heads import ParallelHeads
from ._tensor_parallel.layers import (
    ColumnParallelDense,
    ParallelConv2D,
    RowParallelDense,
    VocabParallelEmbedding,
    VocabParallelSoftmaxCELoss,
)
from ._tensor_parallel.parameters import HomeParameter, ShardedParameter
from ._tensor_parallel.recurrent import ParallelLSTM
from ._tensor_parallel.splitting import shard
from .collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from .schedules import ScheduleError

__all__ = [
    "Cluster",
    "ClusterSimulation",
    "ColumnParallelDense",
    "DistributedTrainer",
    "HomeParameter",
    "Layout",
    "Layouts",
    "Mesh",
    "ParallelConv2D",
    "ParallelHeads",
    "ParallelLSTM",
    "ParallelSelfAttention",
    "Pipeline",
    "Plan",
    "Profile",
    "Report",
    "RowParallelDense",
    "Saving",
    "ScheduleError",
    "SequenceParallelDropout",
    "SequenceParallelLayerNorm",
    "ShardedParameter",
    "TrainStep",
    "VocabParallelEmbedding",
    "VocabParallelSoftmaxCELoss",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "check_against_single_device",
    "clip_global_norm",
    "dashboard",
    "divide",
    "fetch",
    "gather",
    "layouts",
    "load",
    "num_ranks",
    "plan",
    "rank",
    "reduce",
    "reduce_scatter",
    "save",
    "scatter",
    "schedules",
    "shard",
    "simulate",
]


def __dir__() -> list[str]:
    return __all__

"""The table of features. `FACTORS` has an entry for each property of a program, with its possible
values and the options that they give to public functions.

A new feature adds its value here. `feature_programs.py` runs programs of these values, and
`tests/combinations` fails if a public option is in no value. Some pairs of values are in no
program. `MEANINGLESS` lists pairs without a meaning. `DIFFERENT` lists pairs that are documented to
compute different results. `REFUSED` lists pairs that raise an error, with a part of its message.
"""

import itertools
import math

from mpgluon.parallel import schedules
from programs.features.blocks import CUSTOM, FLOW, LAYERS, MEMORY, ORIGINS, TIED
from programs.features.own_optimizer import Nested

NAMED = [*schedules.NAMES, "auto"]


FIRST_AND_LAST = r"(first|last)\.weight"


def plain(*names):
    return {name: {} for name in names}


def partition(plan, *, options=None, **axes):
    """Returns a placement by `Mesh.partition`, over as many devices as the mesh needs."""
    options = {**({} if plan is None else {"plan": plan}), **(options or {})}
    sizes = [size if isinstance(size, int) else len(size) for size in axes.values()]
    mesh = {"axes": axes, "devices": math.prod(sizes)}
    return {"Mesh": mesh, "Mesh.partition": options}


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1},
    "sgd momentum": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "nag": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
    "adam begun late": {"learning_rate": 0.01, "begin_num_update": 5},
    "nadam": {"learning_rate": 0.01},
    "adamax": {"learning_rate": 0.01},
    "adamw": {"learning_rate": 0.01, "epsilon": 0.01},
    "lion": {"learning_rate": 0.001},
    "muon": {"learning_rate": 0.01},
    "adafactor": {"learning_rate": 0.05, "epsilon1": 0.01},
    "adagrad": {"learning_rate": 0.05},
    "adadelta": {},
    "rmsprop": {"learning_rate": 0.01, "centered": True},
    "ftrl": {"learning_rate": 0.1},
    "ftml": {"learning_rate": 0.01},
    "lamb": {"learning_rate": 0.01, "epsilon": 0.01},
    "lars": {"learning_rate": 0.1, "momentum": 0.9, "eta": 0.1},
    "lbsgd": {"learning_rate": 0.01, "warmup_strategy": "lars"},
    "dcasgd": {"learning_rate": 0.1},
    "signum": {"learning_rate": 0.01},
    "sgld": {"learning_rate": 0.001},
    Nested.__name__.lower(): {"learning_rate": 0.1, "wd": 0.01},
}
# Optimizers for which a small change of a gradient causes a small change of the weights
SMOOTH = ("sgd", "sgd momentum", "nag", "lamb", "lars", "lbsgd", "dcasgd", "sgld", "nested")
# Optimizers whose steps depend on norms or means of whole weights
OF_NORMS = ("lamb", "lars", "lbsgd", "muon", "adafactor")

FACTORS = {
    "way": {
        "eager": {},
        "inactive": {"hybridize": {"active": False}},
        "hybridized": {"hybridize": {}},
        "static": {
            "hybridize": {
                "static_alloc": True,
                "static_shape": True,
                "inline_limit": 4,
                "forward_bulk_size": 8,
                "backward_bulk_size": 8,
            }
        },
        **{f"loop {name}": {"Pipeline": {"schedule": name}} for name in NAMED},
        **{f"step {name}": {"Pipeline": {"schedule": name}, "TrainStep": {}} for name in NAMED},
        "step table": {"Pipeline": {"schedule": "table"}, "TrainStep": {}},
        "loop along time": {"Pipeline": {"along": "time"}},
        "step along time": {"Pipeline": {"along": "time"}, "TrainStep": {}},
    },
    "exact": {"exact": {"hybridize": {"exact": True}, "TrainStep": {"exact": True}}, "default": {}},
    "placement": {
        **plain("one device", "two devices", "three devices", "four devices", "back and forth"),
        **plain("placed before", "placed after", "placed by pattern", "group2ctx", "ranks"),
        **plain("list of devices"),
        "mesh of stages": {"Mesh": {"axes": {"stage": 2}, "devices": 2}},
        "mesh of named stages": {"Mesh": {"axes": {"stage": 2}, "devices": 2}, "how": "stages"},
        "mesh of replicas": {"Mesh": {"axes": {"data": 2}, "devices": 2}},
        "mesh of replicas and stages": {"Mesh": {"axes": {"data": 2, "stage": 2}, "devices": 4}},
        "mesh with split layers": {
            "Mesh": {"axes": {"stage": 2, "model": 2}, "devices": 4},
            "how": "split",
        },
        "shard": {},
        # Without a plan, only the batch is divided: the parameters are too small.
        "partition of the batch": partition(None, data=2),
        "partition in unequal shares": partition(None, data=[2, 1]),
        "partition of units": partition(
            {"first.weight": "model", "last.weight": (None, "model")}, model=2
        ),
        "partition of unequal units": partition(
            {r"first\.(weight|bias)": "model", "last.weight": "model:2"}, model=[2, 1]
        ),
        "partition of batch and units": partition(
            {"data0": "data", "first.weight": "model", "last.weight": (None, "model")},
            data=2,
            model=2,
        ),
        "partition of storage": partition({"data0": "shard", FIRST_AND_LAST: "shard"}, shard=2),
        "partition of unequal storage": partition(
            {"data0": "shard", FIRST_AND_LAST: (None, "shard")}, shard=[3, 1]
        ),
        "partition of batch and storage": partition(
            {"data0": (("data", "shard"),), FIRST_AND_LAST: "shard"}, data=2, shard=2
        ),
        "partition of kept storage": partition(
            {"data0": "shard", FIRST_AND_LAST: "shard"}, options={"zero": 2}, shard=2
        ),
        "partition of time": partition({"data0": (None, "context")}, context=2),
        "partition of heads": partition(
            {"data0": (None, "context")}, options={"context": "ulysses"}, context=2
        ),
        "partition of time in a ring": partition(
            {"data0": (None, "context")}, options={"context": "ring"}, context=2
        ),
        "partition of stages": partition(
            {"data0": "data", "first.weight": "data"},
            options={"stages": {"first": 0, "body": 0, "layer": 1, "last": 1}},
            data=2,
            stage=2,
        ),
        "partition with sums by trees": partition(
            {"data0": "data", FIRST_AND_LAST: (None, "data")},
            options={"sums": "tree", "leaves": 3},
            data=2,
        ),
        # The number is the index of a device.
        "offloaded parameters": partition(
            {"data0": "data"}, options={"offload": {"parameters": 2}}, data=2
        ),
        "exact partition": partition(
            {FIRST_AND_LAST: "shard"}, options={"partition": "exact"}, shard=2
        ),
    },
    # How the parameters are created; "net": by the network's initialize
    "created": plain("net", "collect_params", "children", "load_parameters"),
    "captured": plain("nothing", *ORIGINS),
    "count": plain("0", "1", "2", "3", "7", "20"),
    "parameters": {
        **plain("own", *TIED, "frozen", "not differentiable", "constant", "multipliers"),
        **plain("deferred", "unused", "attribute"),
    },
    "inputs": plain("one", "two", "whole", "list", "dict", "None"),
    "outputs": plain("one", "two", "nested", "list", "dict", "same twice", "with an index"),
    "flow": plain(*FLOW),
    "custom": plain(*CUSTOM),
    "memory": plain(*MEMORY),
    "layer": plain(*LAYERS),
    "optimizer": {name: {"Optimizer": options} for name, options in OPTIMIZERS.items()},
    "groups": plain("none", "two", "another optimizer"),
    "accumulate": {"1": {"Trainer": {"accumulate": 1}}, "2": {"Trainer": {"accumulate": 2}}},
    "clipping": {
        **plain("none", "clip_global_norm", "utils"),
        "Trainer": {"Trainer": {"clip_global_norm": 0.05}},
        "elements": {"Optimizer": {"clip_gradient": 0.02}},
    },
    "precision": {
        **plain("float32", "float64", "float16", "bfloat16", "amp bfloat16", "amp float16"),
        "multi_precision": {"Optimizer": {"multi_precision": True}},
    },
    "recompute": {
        "kept": {},
        "all": {"hybridize": {"recompute": True}},
        "layers": {},
        # The number is the index of a device.
        "offloaded": {"hybridize": {"offload": {"activations": 3}}},
        "offloaded layers": {},
    },
    "store": {
        "device": {"Trainer": {"kvstore": "device"}},
        "local": {"Trainer": {"kvstore": "local"}},
        "none": {"Trainer": {"kvstore": None}},
        "on the store": {"Trainer": {"update_on_kvstore": True}},
        "off the store": {"Trainer": {"update_on_kvstore": False}},
        "sharded": {"Trainer": {"shard_updates": True}},
        "offloaded": {"Trainer": {"offload": {"states": 4}}},  # the index of a device
        "in files": {"Trainer": {"offload": {"states": "files"}}},
    },
    "rate": plain("constant", "Factor", "MultiFactor", "Cosine", "Poly"),
    "event": {
        **plain("none", "place", "reset_ctx", "cast", "save_parameters", "save_states"),
        "load_parameters": {
            "save_parameters": {"deduplicate": True},
            "load_parameters": {
                "allow_missing": True,
                "ignore_extra": True,
                "cast_dtype": True,
                "dtype_source": "current",
            },
        },
        "huggingface": {
            "save_parameters": {"format": "huggingface", "shard_bytes": 200},
            "load_parameters": {"format": "huggingface"},
        },
        "checkpoint": {
            "parallel.save": {"step": 1, "position": {"batch": 1}, "extra": {"name": "x"}},
        },
        "background checkpoint": {"parallel.save": {"background": True}},
        "whole checkpoint": {"parallel.save": {"gather": True, "progress": False}},
        **plain("resumed", "export", "pickle"),
        **plain("deepcopy", "new shapes", "exception", "interrupt", "memory limit"),
        **plain("hybridize", "predict", "freeze", "set_learning_rate", "set_data", "captured"),
        **plain("longer list", "new layer", "replaced layers", "amp"),
        **plain("lora", "two adapters", "merged adapters", "quantize"),
    },
    "rows": plain("8 in 4", "7 in 3", "3 in 4", "2 in 2"),
    "pipeline": {
        "default": {},
        "unchecked": {"Pipeline": {"check": False}},
        "split": {"Pipeline": {"split": "all"}},
        "statistics": {"Pipeline": {"statistics": "batch"}},
        "carry": {"Pipeline": {"carry": "state"}},
        "axis": {"Pipeline": {"axis": 1}},
    },
    "gradient": {
        **plain("backward", "head gradients", "several heads"),
        "prediction mode": {"record": {"train_mode": False}, "backward": {"train_mode": False}},
        "autograd.grad": {"grad": {"retain_graph": True}},
        "second order": {"grad": {"create_graph": True}},
        "twice": {"backward": {"retain_graph": True}},
    },
    "calls": plain("1", "2"),  # calls of the network before one backward
    "engine": plain("async", "sync", "shuffle"),
    # The kind of the arrays and parameters
    "kind": {
        "nd": {"set_np": {"shape": False, "array": False}},
        "np": {"set_np": {"shape": True, "array": True}},
        "nd with NumPy shapes": {"set_np": {"shape": True, "array": False}},
    },
}

DEFAULTS = {factor: next(iter(values)) for factor, values in FACTORS.items()}
# Optimizers for other kinds of networks or for tests of optimizers
OTHER_OPTIMIZERS = ("groupadagrad", "test", "ccsgd")
COMPILED = [way for way in FACTORS["way"] if way not in ("eager", "inactive")]
OFFLOADED = ["offloaded", "in files"]
PIPELINED = [way for way in FACTORS["way"] if "Pipeline" in FACTORS["way"][way]]
STEPS = [way for way in PIPELINED if "TrainStep" in FACTORS["way"][way]]
LOOPS = [way for way in PIPELINED if way not in STEPS]
ALONG_TIME = [way for way in PIPELINED if way.endswith("time")]
DRAWING = ("Dropout", "heads", "MultiHeadAttention", "noise")
REBUILT = ("lora", "two adapters", "merged adapters", "quantize")  # events with a new trainer
HOSTED = ("Custom", "Custom with a layer", "Function")
WRITES = ("write to a new array", "in-place sums")  # not possible in a compiled block
PARTITIONS = [name for name, value in FACTORS["placement"].items() if "Mesh.partition" in value]
CHANGING_BITS = [name for name in PARTITIONS if name != "exact partition"]
# Partitions that divide parameters
IN_PARTS = [
    name
    for name in PARTITIONS
    if any("weight" in key for key in FACTORS["placement"][name]["Mesh.partition"].get("plan", ()))
]
# Partitions in the quick tests of all pairs
QUICK_PARTITIONS = (
    "partition in unequal shares",
    "partition of batch and units",
    "partition of stages",
    "partition with sums by trees",
)
OF_INPUTS = [name for name in PARTITIONS if name not in IN_PARTS]
# The placement that loads a checkpoint of another one
OTHER_LAYOUTS = {
    **dict(zip(OF_INPUTS, [*OF_INPUTS[1:], OF_INPUTS[0]])),
    **dict(zip(IN_PARTS, IN_PARTS[1:])),
    "exact partition": "placed by pattern",
}
MESHES = [
    name
    for name, value in FACTORS["placement"].items()
    if "Mesh" in value and name not in PARTITIONS
]
REPLICAS = ("mesh of replicas", "mesh of replicas and stages")
SPLIT = ("mesh with split layers", "shard")
BY_CODE = (
    "one device",
    "two devices",
    "three devices",
    "four devices",
    "back and forth",
    "ranks",
)
HALVES = ("float16", "bfloat16", "amp bfloat16", "amp float16", "multi_precision")


def rules(*entries):
    """Converts pairs of {factor: values} to pairs of (factor, set of values)."""
    return [
        tuple((factor, frozenset(values)) for side in entry for factor, values in side.items())
        for entry in entries
    ]


def but(factor, *values):
    return [value for value in FACTORS[factor] if value not in values]


# Pairs without a meaning: an option has no effect, or no program makes calls in this order.
MEANINGLESS = rules(
    ({"captured": ["nothing"]}, {"count": but("count", "0")}),
    ({"captured": but("captured", "nothing")}, {"count": ["0"]}),
    ({"captured": ["nothing", "NumPy", "NumPy number"]}, {"event": ["captured"]}),
    # A traced block keeps the numbers and the empty lists that it read.
    ({"captured": ["nothing", "NumPy", "NumPy number"]}, {"event": ["longer list"]}),
    ({"way": but("way", *PIPELINED)}, {"pipeline": but("pipeline", "default")}),
    ({"way": ["eager", "inactive"]}, {"exact": ["exact"]}),
    ({"way": ["eager"]}, {"recompute": ["all", "offloaded"]}),  # options of `hybridize`
    ({"way": but("way", *ALONG_TIME)}, {"pipeline": ["carry"]}),
    # These placements create each stage's parameters on its device.
    ({"placement": BY_CODE}, {"created": but("created", "net")}),
    # Files of whole parameters load before layers are split (test_placed_initialization.py).
    ({"placement": SPLIT}, {"created": ["load_parameters"]}),
    # A TrainStep calls the network once, does not accept head gradients, and updates before a
    # program can clip.
    ({"way": STEPS}, {"calls": ["2"]}),
    ({"way": STEPS}, {"gradient": but("gradient", "backward", "several heads")}),
    ({"way": STEPS}, {"clipping": ["clip_global_norm", "utils"]}),
    # A schedule table covers the stages of one replica. Other layers may change them, and with
    # `recompute`, other gradients as well. In a partition, other transfers may, as of captured
    # arrays or of another precision.
    ({"way": ["step table"]}, {"placement": [*REPLICAS, *PARTITIONS]}),
    ({"way": ["step table"]}, {"event": ["new layer", "replaced layers", "freeze", *REBUILT]}),
    # The program writes gradients itself or twice, and accumulation would add them.
    ({"gradient": ["autograd.grad", "twice"]}, {"accumulate": ["2"]}),
)

# Pairs that are documented to compute different results than one device without a pipeline
DIFFERENT = rules(
    # Each replica has its own part of a penalty and of a norm, and its own random numbers and
    # statistics (docs/parallel/reference.md).
    ({"placement": REPLICAS}, {"gradient": ["second order"]}),
    ({"placement": REPLICAS}, {"clipping": ["utils"]}),
    ({"placement": REPLICAS}, {"layer": [*DRAWING, "BatchNorm"]}),
    # Loading a float weight rounds it again (docs/huggingface.md).
    ({"layer": ["QuantizedDense"]}, {"event": ["huggingface"]}),
    # Each chunk draws different random numbers.
    ({"way": ALONG_TIME}, {"layer": DRAWING}),
)

# Pairs that raise an error, a part of its message, and other values that the error requires
LAID_OUT = {"placement": "mesh of replicas"}
HEADS = ("decoder", "MultiHeadAttention", "limited heads")
CAPTURING = {"captured": "host data", "count": "2"}
COMPILED_WHOLE = {"way": "hybridized"}
COMPILED_PARTITION = {"way": "hybridized", "exact": "default"}
REFUSED = [
    (({"placement": CHANGING_BITS}, {"exact": ["exact"]}), "of Mesh.partition", COMPILED_WHOLE),
    (
        ({"placement": PARTITIONS}, {"event": ["export"]}),
        "export (symbols): 'net' is divided over the devices of a mesh (Mesh.partition)",
        COMPILED_PARTITION,
    ),
    (
        ({"placement": PARTITIONS}, {"event": ["lora", "two adapters", "merged adapters"]}),
        "(Mesh.partition); add adapters before",
        {},
    ),
    (
        ({"placement": PARTITIONS}, {"event": ["quantize"]}),
        "(Mesh.partition); quantize the weights before",
        {},
    ),
    (
        ({"placement": PARTITIONS}, {"event": ["place"]}),
        "(Mesh.partition); a network is either placed or partitioned",
        {},
    ),
    (({"placement": IN_PARTS}, {"event": ["reset_ctx"]}), "(Mesh.partition", {}),
    (
        ({"placement": IN_PARTS}, {"parameters": ["deferred"]}),
        "Mesh.partition: the shape of 'first.weight' is not known yet",
        {},
    ),
    (
        ({"placement": ["offloaded parameters"]}, {"parameters": ["deferred"]}),
        "Mesh.partition: the shape of 'first.weight' is not known yet",
        {},
    ),
    (
        ({"placement": ["offloaded parameters"]}, {"layer": ["row_sparse"]}),
        "'layer.table.weight' has row_sparse storage or gradients",
        {},
    ),
    (({"store": OFFLOADED}, {"layer": ["row_sparse"]}), "cannot be offloaded, because", {}),
    (({"way": ["eager", "inactive", *STEPS]}, {"event": ["export"]}), "hybridize", {}),
    (({"placement": SPLIT}, {"parameters": [*TIED]}), "shared parameters", {}),
    (({"placement": SPLIT}, {"event": ["export"]}), "it has no symbol", COMPILED_WHOLE),
    (
        ({"parameters": ["deferred"]}, {"created": ["load_parameters"]}),
        "has not been initialized yet",
        {"placement": "placed before"},
    ),
    (
        ({"parameters": ["deferred"]}, {"placement": ["list of devices"]}),
        "pass the input sizes of all layers",
        {},
    ),
    (({"placement": SPLIT}, {"event": ["two adapters"]}), "dora=True needs nn.Dense", {}),
    (({"placement": SPLIT}, {"event": ["quantize"]}), "does not match the whole path or name", {}),
    (({"parameters": [*TIED]}, {"event": ["merged adapters"]}), "share the weight of 'first'", {}),
    (({"parameters": [*TIED]}, {"event": ["quantize"]}), "no layer was replaced", {}),
    (({"placement": SPLIT}, {"event": ["reset_ctx"]}), "is split over devices", {}),
    (({"placement": SPLIT}, {"event": ["place"]}), "split over devices", {}),
    (
        ({"custom": ["Function"]}, {"event": ["export"]}),
        "cannot be written as a symbol",
        COMPILED_WHOLE,
    ),
    (
        ({"flow": ["foreach", "while_loop", "cond"]}, {"event": ["export"]}),
        "cannot be written as a symbol",
        {**COMPILED_WHOLE, **CAPTURING},
    ),
    (
        ({"custom": ["Custom", "Custom with a layer"]}, {"event": ["export"]}),
        "cannot be written as a symbol",
        {**COMPILED_WHOLE, **CAPTURING},
    ),
    (({"way": ["step table"]}, {"event": ["place"]}), "the schedule has rows for", {}),
    (
        ({"way": ["step table"]}, {"event": ["reset_ctx"]}),
        "the schedule has rows for",
        {"placement": "three devices"},
    ),
    (
        ({"way": ["step table"]}, {"event": ["new shapes"]}),
        "is missing from the schedule",
        {"rows": "3 in 4"},
    ),
    (({"way": ["step along time"]}, {"placement": REPLICAS}), "one replica", {}),
    (({"way": LOOPS}, {"gradient": ["second order"]}), "pipeline", {}),
    (
        ({"layer": HEADS}, {"gradient": ["second order"]}),
        "_backward_head_attention: has no gradient",
        {},
    ),
    (
        ({"layer": ["classes"]}, {"gradient": ["second order"]}),
        "_backward_linear_cross_entropy: has no gradient",
        {},
    ),
    (({"custom": HOSTED}, {"gradient": ["second order"]}), "no gradient", {}),
    (
        ({"layer": ["MoE"]}, {"precision": ["amp float16"]}),
        "cannot follow the changing loss scale",
        COMPILED_WHOLE,
    ),
    (({"way": COMPILED}, {"memory": WRITES}), "hybridize", {}),
    (({"recompute": ["layers", "offloaded layers"]}, {"memory": WRITES}), "hybridize", {}),
    (
        ({"way": PIPELINED}, {"recompute": ["offloaded", "offloaded layers"]}),
        "activations cannot be offloaded in a pipeline",
        {},
    ),
    (
        ({"layer": ["row_sparse"]}, {"flow": ["while_loop", "cond"]}),
        "has a row_sparse gradient",
        COMPILED_WHOLE,
    ),
    (
        ({"layer": ["row_sparse"]}, {"custom": HOSTED}),
        "has a row_sparse gradient",
        COMPILED_WHOLE,
    ),
    (({"layer": ["row_sparse"]}, {"kind": ["np"]}), "need arrays of mx.nd", {}),
    (
        ({"store": ["on the store"]}, {"clipping": ["clip_global_norm"]}),
        "allreduce_grads() cannot be called",
        LAID_OUT,
    ),
]


# Combinations that raise an error on all ranks if the placement "ranks" spans several ranks, a part
# of its message, and other values that the error requires
REFUSED_ON_RANKS = [
    (
        {"event": ["save_parameters", "load_parameters", "huggingface", "pickle"]},
        "mx.parallel.save",
        {},
    ),
    ({"event": ["export"]}, "mx.parallel.save", COMPILED_WHOLE),
    ({"event": ["save_states"]}, "mx.parallel.save", {"optimizer": "adam"}),
    ({"event": ["whole checkpoint"]}, "gather=True needs the arrays of all ranks on one", {}),
    ({"store": OFFLOADED}, "belongs to a rank; use devices of this process", {}),
    (
        {"recompute": ["offloaded", "offloaded layers"]},
        "cannot be offloaded in a network on devices of ranks",
        COMPILED_WHOLE,
    ),
    ({"flow": ["while_loop", "cond"]}, "mx.parallel.fetch", {}),
    ({"flow": ["while_loop", "cond"]}, "mx.parallel.fetch", COMPILED_WHOLE),
]


def refused_on_ranks(row):
    return any(
        all(row[factor] in names for factor, names in values.items())
        for values, *_ in REFUSED_ON_RANKS
    )


def refused_rows():
    """Returns (values of a row, part of its error) for each combination of `REFUSED_ON_RANKS`."""
    return [
        ({"placement": "ranks", **others, **dict(zip(values, chosen))}, text)
        for values, text, others in REFUSED_ON_RANKS
        for chosen in itertools.product(*values.values())
    ]


def excluded(one, other):
    """True if two (factor, value) pairs are never in the same program."""
    return any(
        one[0] == first and other[0] == second and one[1] in values and other[1] in others
        for (first, values), (second, others) in EXCLUDED
    )


EXCLUDED = (*MEANINGLESS, *DIFFERENT, *rules(*[sides for sides, *_ in REFUSED]))


# Options without a value of their own in `FACTORS`, and the place that sets them
OTHER_OPTIONS = {
    "hybridize": {
        "pipeline": "the ways with a Pipeline",
        "group2ctx": "the placement group2ctx",
        "backend": "refused: there is no backend but the compiler",
    },
    "TrainStep.__call__": {
        "states": "the ways along time",
        "batch_size": "as Trainer.step",
        "ignore_stale_grad": "the parameters unused",
    },
    "Trainer": {"compression_params": "stores of ranks: tests/ranks"},
    "Mesh.partition": {},
    "Mesh.place": {"stages": "the mesh of named stages", "split": "the mesh with split layers"},
    "Optimizer": {
        "rescale_grad": "by Trainer.step",
        "param_idx2name": "by Module",
        "lr_scheduler": "the factor rate",
        "sym": "by Module",
        "param_dict": "by Trainer",
    },
    "Parameter": {
        "grad_req": "the parameters frozen",
        "dtype": "the factor precision",
        "lr_mult": "the parameters multipliers",
        "wd_mult": "the parameters multipliers",
        "init": "every program",
        "allow_deferred_init": "the parameters deferred",
        "differentiable": "the parameters not differentiable",
        "stype": "row_sparse weights: tests/gluon",
        "grad_stype": "the layer row_sparse",
    },
    "initialize": {
        "init": "every program",
        "ctx": "the factor placement",
        "verbose": "prints",
        "force_reinit": "makes a new network",
        "group2ctx": "the placement group2ctx",
    },
    "place": {"where": "the factor placement", "verbose": "prints"},
    "save_parameters": {"name_map": "names: tests/files/test_huggingface.py"},
    "load_parameters": {
        "ctx": "the event save_parameters",
        "name_map": "names: tests/files/test_formats.py",
    },
    "export": {"epoch": "the event export", "remove_amp_cast": "accepted, without effect"},
    "parallel.save": {"loss_scale": "loops without a trainer: tests/files/test_checkpoint.py"},
    "parallel.load": {"progress": "prints"},
    "backward": {"head_grads": "head gradients"},
    "grad": {"head_grads": "as of backward", "train_mode": "as of backward"},
}

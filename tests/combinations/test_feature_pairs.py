"""Pairwise testing: programs that contain every pair of features, each compared with eager
execution on one device (`programs/feature_programs.py`), and the table of features itself."""

import inspect
import itertools
import warnings

import pytest

import mpgluon as mx
from mpgluon import gluon, lr_scheduler, optimizer, parallel
from mpgluon.gluon.block._hybrid_block import _FLAGS
from programs.feature_programs import check, finding, possible
from programs.features.covering import cover
from programs.features.run import RATES, Run
from programs.features.table import (
    DEFAULTS,
    FACTORS,
    NAMED,
    OPTIMIZERS,
    OTHER_OPTIMIZERS,
    OTHER_OPTIONS,
    PARTITIONS,
    QUICK_PARTITIONS,
    REFUSED,
    excluded,
)
from programs.random_blocks import seed_of_tests

SEED, PARTS, PARTS_OF_TRIPLES = 1, 24, 200
SLOW = [name for name in PARTITIONS if name not in QUICK_PARTITIONS]


@pytest.fixture(autouse=True)
def one_thread():
    """The compared bits depend on the number of threads."""
    mx.context.set_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    mx.context.set_threads(0)


@pytest.fixture(scope="module")
def pairs():
    return cover(FACTORS, excluded, 2, SEED)


@pytest.fixture(scope="module")
def quick_rows():
    """Returns programs with all pairs of values, except of most partitions."""
    values = [value for value in FACTORS["placement"] if value not in SLOW]
    return cover({**FACTORS, "placement": values}, excluded, 2, SEED)[0]


def check_rows(rows):
    """Checks all rows; fails with the first failure, minimized."""
    for row in rows:
        try:
            check(row)
        except Exception as error:
            pytest.fail(finding(row, error))


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_with_all_pairs_of_features_match_eager_execution(part, quick_rows):
    check_rows(quick_rows[part::PARTS])


@pytest.mark.slow
def test_programs_of_partitions_match_eager_execution(pairs):
    check_rows([row for row in pairs[0] if row["placement"] in PARTITIONS])


def test_every_pair_of_features_is_covered_or_excluded(pairs):
    """Each pair of values is in a program, raises a tested error, or is excluded by a rule."""
    rows, count, impossible = pairs
    covered = {pair for row in rows for pair in itertools.combinations(row.items(), 2)}
    values = [(factor, value) for factor in FACTORS for value in FACTORS[factor]]
    every = [(a, b) for a, b in itertools.combinations(values, 2) if a[0] != b[0]]
    left_out = [(a, b) for a, b in every if excluded(a, b) or excluded(b, a)]
    print(
        f"{len(every)} pairs of {len(values)} values: {len(covered)} in {len(rows)} programs, "
        f"{len(left_out)} excluded, {len(impossible)} that follow from these"
    )
    assert len(covered) == count
    assert len(covered) + len(left_out) + len(impossible) == len(every)
    assert all(possible(row) for row in rows)


@pytest.mark.slow
def test_programs_with_triples_of_features_match_eager_execution():
    """Runs a random part of the programs that cover all triples; `feature_programs.py --strength 3`
    runs all."""
    seed = seed_of_tests()
    rows, count, _ = cover(FACTORS, excluded, 3, seed)
    part = seed % PARTS_OF_TRIPLES
    print(
        f"{count} triples in {len(rows)} programs; part {part} of {PARTS_OF_TRIPLES}, seed {seed}"
    )
    check_rows(rows[part::PARTS_OF_TRIPLES])


# Programs that have failed
FOUND = {
    "blocks of a second backward": {
        "way": "loop along time",
        "placement": "four devices",
        "gradient": "twice",
    },
    "blocks of a backward after autograd.grad": {
        "way": "loop 1f1b",
        "placement": "mesh with split layers",
        "captured": "NumPy",
        "count": "2",
        "outputs": "nested",
        "layer": "Dropout",
        "precision": "amp bfloat16",
        "gradient": "autograd.grad",
    },
    "rounding that BatchNorm of two rows amplifies": {
        "way": "loop along time",
        "placement": "mesh with split layers",
        "layer": "BatchNorm",
        "precision": "float64",
        "rows": "2 in 2",
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_formerly_failing_programs_match_eager_execution(name):
    for _ in range(3):
        check({**DEFAULTS, **FOUND[name]})


# One program for each pair of values that raises an error
FAILING = [
    ({**others, one: value, other: its_value}, text)
    for (first, second), text, others in REFUSED
    for one, values in first.items()
    for other, its_values in second.items()
    for value in values
    for its_value in its_values
]


@pytest.mark.parametrize("number", range(len(FAILING)))
def test_incompatible_pairs_of_features_raise(number):
    chosen, text = FAILING[number]
    with pytest.raises((mx.MXNetError, TypeError, ValueError, RuntimeError)) as raised:
        Run({**DEFAULTS, **chosen}, False, False).run()
    assert text in str(raised.value), str(raised.value)


# --- Completeness of the table --------------------------------------------------------------------

# Public functions whose options the table must name, and their arguments that are no options
FUNCTIONS = {
    "Pipeline": (parallel.Pipeline, {"micro_batches"}),
    "TrainStep": (parallel.TrainStep, {"net", "loss", "trainer", "pipeline"}),
    "TrainStep.__call__": (parallel.TrainStep.__call__, {"self", "data", "labels"}),
    "Trainer": (gluon.Trainer, {"params", "optimizer", "optimizer_params"}),
    "Mesh": (parallel.Mesh, set()),
    "Mesh.partition": (parallel.Mesh.partition, {"self", "net"}),
    "Mesh.place": (parallel.Mesh.place, {"self", "net"}),
    "Optimizer": (optimizer.Optimizer, {"kwargs"}),
    "Parameter": (gluon.Parameter, {"name", "shape"}),
    "initialize": (gluon.Block.initialize, {"self"}),
    "place": (gluon.Block.place, {"self", "args", "options"}),
    "save_parameters": (gluon.Block.save_parameters, {"self", "filename"}),
    "load_parameters": (gluon.Block.load_parameters, {"self", "filename"}),
    "export": (gluon.HybridBlock.export, {"self", "path"}),
    "parallel.save": (parallel.save, {"directory", "net", "trainer"}),
    "parallel.load": (parallel.load, {"directory", "net", "trainer"}),
    "backward": (mx.autograd.backward, {"heads"}),
    "grad": (mx.autograd.grad, {"heads", "variables"}),
    "record": (mx.autograd.record, set()),
    "set_np": (mx.util.set_np, set()),
}


def named(function):
    """Returns the options that values of the table pass to a function."""
    return {
        option
        for values in FACTORS.values()
        for value in values.values()
        for option in value.get(function, {})
    } | set(OTHER_OPTIONS.get(function, {}))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_options_of_public_functions_are_in_the_table(function):
    target, arguments = FUNCTIONS[function]
    options = set(inspect.signature(target).parameters) - arguments
    if inspect.isclass(target):
        options -= {"self"}
    assert options <= named(function), f"not in the table: {options - named(function)}"
    if function != "Optimizer":  # subclasses have additional options
        assert named(function) <= options, f"unknown: {named(function) - options}"


def test_flags_of_hybridize_are_in_the_table():
    assert {*_FLAGS, "active", "group2ctx"} == named("hybridize")


def test_optimizers_schedules_and_rates_are_in_the_table():
    known = {name.split(" ")[0] for name in OPTIMIZERS}
    assert known | set(OTHER_OPTIMIZERS) == set(optimizer.Optimizer.opt_registry)
    assert {*parallel.schedules.NAMES, "auto"} == set(NAMED)
    classes = {name for name in lr_scheduler.__all__ if name.endswith("Scheduler")}
    assert {f"{name}Scheduler" for name in RATES} == classes - {"LRScheduler"}

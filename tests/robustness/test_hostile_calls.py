"""Calls with misbehaving arguments raise errors and never crash. They run in subprocesses."""

import random

import pytest

import mpgluon as mx
from mpgluon import _core
from programs import op_fuzz
from programs.random_blocks import seed_of_tests
from support.processes import output_of

# Values that empty their container when converted; the freed items before them are then
# overwritten.
CONTAINERS = """
import numpy as np, mpgluon as mx
from mpgluon import nd, sym, _core

class Emptying:
    def look(self):
        global kept
        container.clear()
        kept = [bytes(100) for i in range(50)] + [float(i) for i in range(50)]
    def __index__(self): self.look(); return 2
    def __float__(self): self.look(); return 2.0
    def __bool__(self): self.look(); return True
    def __str__(self): self.look(); return "2"
    def __len__(self): self.look(); return 2
    def __hash__(self): return 1
    def __eq__(self, other): self.look(); return False

class Sequence:  # with a length that is not the truth
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, i):
        if i > 3: raise IndexError
        return i + 1

def attempt(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    # No SystemError, for one
    except (mx.MXNetError, ValueError, TypeError, OverflowError, MemoryError):
        return 1
    return 0

big = lambda: [10 ** 9 + i for i in range(8)]
calls = 0
for name in _core.list_ops():
    for param in _core.get_op(name).describe()["params"]:
        for make in (lambda: [Emptying(), *big()], lambda: [3, Emptying(), *big()],
                     lambda: Emptying(), lambda: Sequence(1 << 40), lambda: Sequence(-1)):
            value = make()
            container = value if isinstance(value, list) else []
            attempt(_core.infer_shape, name, [], {param["name"]: value})
            container = {param["name"]: Emptying(), **{str(10 ** 9 + i): [i] for i in range(8)}}
            attempt(_core.OpCall, name, container)
            calls += 2

x = nd.ones((2, 3, 4, 4))
for call in (lambda l: nd.zeros(l), lambda l: nd.full(l, 1), lambda l: nd.random.uniform(shape=l),
             lambda l: x.reshape(l), lambda l: x.slice(begin=l, end=l),
             lambda l: x.transpose(l), lambda l: nd.tile(x, reps=l),
             lambda l: nd.contrib.MultiBoxPrior(x, sizes=l), lambda l: x[l], lambda l: nd.array(l),
             lambda l: sym.Reshape(sym.var("a"), shape=l), lambda l: sym.zeros(l),
             lambda l: nd.concat(*l), lambda l: nd.add_n(*l), lambda l: nd.stack(l),
             lambda l: _core.empty(l, mx.cpu(), "float32"),
             lambda l: _core.sum_replicas(l, 0, True),
             lambda l: _core.MultiUpdate("multi_sgd_update", [x, x.copy()], 2, l),
             lambda l: mx.autograd.backward(l), lambda l: mx.autograd.grad(l, [x]),
             lambda l: mx.autograd.mark_variables([x], [x.copy()], l),
             lambda l: _core.CachedOp(lambda a: a, {"budget": l}),
             lambda l: mx.nd.save("/dev/null/x", l)):
    for make in (lambda: [Emptying(), *big()], lambda: [3, Emptying(), *big()],
                 lambda: [x, Emptying(), x, x, x]):
        container = make()
        attempt(call, container)
        calls += 1
for what in range(4):
    for name in ("shape", "whole"):
        container = [Emptying(), *big()]
        pairs = [(container, "float32"), ((2, 3), "float32"), ((2, 3), "float32")]
        if name == "whole":
            wide = ((10 ** 9, 3), "float32")
            container = pairs = [([Emptying(), 10 ** 9], "float32"), wide, wide]
        attempt(_core.infer_shape, "add_n", pairs, {})
        container = [Emptying(), *big()] if name == "shape" else None
        pairs = [(container, "float32")]
        if not container:
            pairs = [([Emptying(), 10 ** 9], "float32"), ((10 ** 9, 3), "float32")]
        container = container or pairs
        attempt(_core.OpCall("add_n", {"num_args": len(pairs)}).infer, pairs, pairs, False)
print(calls)
"""


def test_containers_that_change_while_read_do_not_crash():
    assert int(output_of(CONTAINERS)) > 5000


# Calls all functions and methods of the core with objects created by __new__ only, outside a trace
# (`traced` is 0) or inside one.
HALF_MADE = """
from mpgluon import _core, nd

SPECIAL = ("_", "set_exit_status", "ranks_begin", "ranks_end")  # test hooks, process state, MPI
SKIPPED = {"__init_subclass__", "__subclasshook__", "__class__", "__setattr__", "__delattr__"}

def attempt(call, *args):
    try:
        call(*args)
    except SystemError as error:
        raise AssertionError(f"{call} {args}") from error
    except Exception:
        pass
    return 1

def members(item):
    for name in sorted(set(dir(type(item))) - SKIPPED):
        try:
            yield getattr(item, name)
        except Exception:
            pass

trace, calls = _core.Trace(), 0
objects = [None, 0, "x", [], {}, (0,), (0, 0, 0, 0), nd.ones(2)]
if traced:
    trace.__enter__()
    objects = [trace.input(nd.ones(2)), nd.ones(2), nd.ones(2)]
for kind in [item for item in vars(_core).values() if isinstance(item, type)]:
    for make in (kind, lambda: kind.__new__(kind)):
        try:
            objects.append(make())
        except Exception:
            pass
for name, call in vars(_core).items():
    if type(call) is not type(len) or name.startswith(SPECIAL):
        continue
    for item in objects:
        for args in [(item,), (item, item), (item, None), (None, item), ([item],)]:
            calls += attempt(call, *args)
        for other in objects[:2]:
            for args in [(item, other), (other, item), ([item], [other]), ([other], [item])]:
                calls += attempt(call, *args)
        if traced:
            trace = _core.Trace()
            trace.__enter__()
for item in objects:
    for call in filter(callable, members(item)):
        first = objects[0]
        for args in [(), (None,), (item,), (0,), (first,), (first, first), (None, None, None)]:
            calls += attempt(call, *args)
print(calls)
"""


@pytest.mark.parametrize("traced", (0, 1))
def test_core_functions_reject_uninitialized_objects(traced):
    printed = output_of(f"traced = {traced}\n{HALF_MADE}")
    assert int(printed.split()[-1]) > 10000


def test_invalid_packed_weights_raise():
    """The contents of packed weights describe their layout."""
    printed = output_of("""
        import numpy as np, mpgluon as mx
        from mpgluon import _core, nd
        convolution = _core.get_op("_packed_convolution")
        dense = _core.get_op("_packed_fully_connected")
        for contents in (np.ones, np.zeros, lambda n: np.full(n, np.nan),
                         lambda n: np.full(n, 1e30)):
            weights = nd.array(contents(528)), nd.array(contents(4112))
            for call in (lambda: convolution(nd.ones((2, 1, 8, 5)), weights[0], kernel=(1, 2),
                                             num_filter=1, no_bias=True),
                         lambda: dense(nd.ones((2, 64)), weights[1], num_hidden=64, no_bias=True)):
                try:
                    call().wait_to_read()
                except mx.MXNetError as error:
                    text = str(error)
                    assert "does not fit" in text or "must have the shape" in text, error
        print("done")
        """)
    assert printed.strip() == "done"


def fuzz(tmp_path, **options):
    arguments = [f"--{key}={value}" for key, value in options.items()]
    log = tmp_path / "log"
    try:
        output_of(
            f"from programs import op_fuzz; op_fuzz.main({[*arguments, '--log', str(log)]})",
            MPGLUON_CPU_THREADS="1",
            timeout=600,
        )
    except AssertionError as error:
        raise AssertionError(f"{log.read_text().strip()}\n{str(error)[-4000:]}") from None


def test_ops_with_hostile_parameters_do_not_crash(tmp_path):
    fuzz(tmp_path, calls=2500, seed=1)


@pytest.mark.slow
def test_ops_with_many_hostile_parameters_do_not_crash(tmp_path):
    fuzz(tmp_path, seconds=25, seed=seed_of_tests())


@pytest.mark.parametrize("needed", [1, 3])
def test_fuzzer_minimizes_failing_calls_and_parameters(needed, monkeypatch, capsys):
    """The fake process crashes in call 37 if the call `needed` - 1 before it ran and the parameter
    axis is given."""

    def process(*options):
        options = [str(option) for option in options]
        first = int(options[options.index("--first") + 1])
        last = int(options[options.index("--last") + 1]) if "--last" in options else 1000
        if not first <= 37 - needed + 1 <= 37 <= last or "axis" in options:
            return 0, "", ""
        return -11, "sum seed 5 number 37 params {'axis': 1, 'keepdims': True} inputs []", "crash"

    monkeypatch.setattr(op_fuzz, "process", process)
    assert op_fuzz.main(["--calls=500", "--seed=5", "--shrink"]) == 1
    printed = capsys.readouterr().out
    assert "exit status -11" in printed and "'axis': 1" in printed and "crash" in printed
    repeat = printed.splitlines()[-1]
    if needed == 1:
        assert repeat.endswith("op_fuzz.py --seed 5 --first 37 --last 37 --without keepdims")
    else:
        assert repeat.endswith("op_fuzz.py --seed 5 --first 33 --last 37")
    assert op_fuzz.main(["--calls=500", "--seed=5", "--first=38", "--shrink"]) == 0


def test_extreme_integers_raise_or_mean_out_of_range():
    """No integer overflow occurs; sanitizer builds would report one."""
    most, least = 2**63 - 1, -(2**63)
    for refused in (
        lambda: mx.nd.image.crop(mx.nd.ones((5, 5, 3)), 4, most, 1, most),
        lambda: mx.nd.contrib.interleaved_matmul_selfatt_qk(mx.nd.ones((3, 2, 24)), heads=most),
        lambda: mx.nd.Crop(mx.nd.ones((1, 2, 5, 6)), h_w=(None, most), center_crop=True),
        lambda: mx.nd.image.resize(mx.nd.ones((5, 4, 3)), 2**62, keep_ratio=True),
        lambda: mx.nd.GridGenerator(mx.nd.ones((2, 6)), "affine", target_shape=(2**32, 2**31)),
        lambda: mx.nd.contrib.ROIAlign(
            mx.nd.ones((2, 12, 6, 5)), mx.nd.zeros((4, 5)), (2**62, most), 1, position_sensitive=1
        ),
    ):
        with pytest.raises(mx.MXNetError):
            refused()
    for k in (most, least):
        assert mx.nd.diag(mx.nd.ones((5, 2)), k=k).shape == (0,)


@pytest.mark.parametrize("format", ["int8", "int4", "nf4", "q8_0", "q4_0", "q4_k", "q6_k"])
@pytest.mark.parametrize("in_units", [2**63 - 1, (2**63 // 34) * 32, 2**62])
def test_packed_weights_of_extreme_sizes_raise(format, in_units):
    packed = mx.nd.zeros((5, 68), dtype="int8" if format == "int8" else "uint8")
    scales = [mx.nd.ones((5, 1))] if format in ("int8", "int4", "nf4") else []
    for group in (0, 1, 2**62):
        options = dict(units=5, in_units=in_units, format=format, group=group)
        with pytest.raises(mx.MXNetError, match="too large|multiple|group"):
            mx.nd.contrib.dequantize_weight(packed, *scales, **options)
        with pytest.raises(mx.MXNetError, match="too large|multiple|group"):
            mx.nd.contrib.quantized_dot(mx.nd.ones((1, 68)), packed, *scales, **options)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: mx.nd.tile(x, reps=(2**62, 2**32, 0, 5)),
        lambda x: mx.nd.tile(x, reps=(2**40, 2**40)),
        lambda x: mx.nd.repeat(x, repeats=2**62),
        lambda x: mx.nd.one_hot(x, depth=2**61),
        lambda x: mx.nd.broadcast_to(x.reshape((1, 2)), shape=(2**62, 2)),
        lambda x: mx.nd.zeros((2**40, 2**40)) + x,
        lambda x: mx.nd.pad(
            x.reshape((1, 1, 2, 1)),
            mode="constant",
            pad_width=(0, 0, 0, 0, 2**61, 2**61, 0, 0),
            constant_value=1,
        ),
    ],
)
def test_results_of_impossible_sizes_raise(call, traced):
    x = mx.nd.ones((2,))
    with pytest.raises(mx.MXNetError, match="too large|does not fit|out of memory|too many"):
        _core.CachedOp(lambda x: [call(x)], {})(x) if traced else call(x).wait_to_read()


def test_every_array_of_a_list_is_checked():
    """A dtype without a kernel raises at any position of the list."""
    refused, rng = 0, random.Random(0)
    for op in map(_core.get_op, _core.list_ops()):
        row = op.describe()
        if not row["inputs"] or not row["inputs"][0]["variadic"]:
            continue
        params = {
            param["name"]: 3 if param["kind"] == "integer" else op_fuzz.plain(rng, param)
            for param in row["params"]
            if param["required"]
        }
        for dtype in {"uint8", "int32", "bool", "float64"} - set(row["dtypes"]):
            arrays = [mx.nd.ones((1,)), mx.nd.ones((1,)).astype(dtype), mx.nd.ones((1,))]
            with pytest.raises(mx.MXNetError, match=f"dtype {dtype} is not supported"):
                op(*arrays, **params)
            refused += 1
    assert refused > 20

"""Data sets, samplers and DataLoader: order, batches, worker processes, threads, failures."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.gluon import data

VALUES = np.arange(20, dtype="float32").reshape(10, 2)
LABELS = np.arange(10, dtype="int32")
WAYS = {
    "direct": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "thread_pool": True},
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


class Function(data.Dataset):
    """Sample i is fn(i)."""

    def __init__(self, length, fn):
        self._length, self._fn = length, fn

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return self._fn(int(i))


# --- Data sets and samplers ---


def test_array_dataset_indexes_and_validates_lengths():
    dataset = data.ArrayDataset(mx.nd.array(VALUES), mx.nd.array(LABELS, dtype="int32"))
    assert len(dataset) == 10
    values, label = dataset[3]
    np.testing.assert_array_equal(values.asnumpy(), VALUES[3])
    assert label == 3 and isinstance(label, np.int32)
    assert data.ArrayDataset(LABELS)[4] == 4
    with pytest.raises(ValueError):
        data.ArrayDataset(VALUES, LABELS[:5])
    with pytest.raises(ValueError):
        data.ArrayDataset()


def test_dataset_filter_shard_take_and_sample_select_items():
    dataset = data.SimpleDataset(list(range(11)))
    everything = lambda d: [d[i] for i in range(len(d))]
    assert everything(dataset.filter(lambda x: x % 3 == 0)) == [0, 3, 6, 9]
    assert [everything(dataset.shard(3, i)) for i in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
    assert everything(dataset.take(3)) == [0, 1, 2]
    assert len(dataset.take(None)) == len(dataset.take(50)) == 11
    assert everything(dataset.sample(data.SequentialSampler(2, start=4))) == [4, 5]
    assert everything(dataset.transform(lambda x: x * 2).take(3)) == [0, 2, 4]
    pairs = data.SimpleDataset([(1, 2), (3, 4)])
    assert everything(pairs.transform(lambda a, b: a + b, lazy=False)) == [3, 7]
    assert everything(pairs.transform_first(lambda a: -a)) == [(-1, 2), (-3, 4)]
    for wrong in (
        lambda: dataset.shard(0, 0),
        lambda: dataset.shard(2, 2),
        lambda: dataset.take(-1),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(TypeError):
        dataset.sample([1, 2])


def test_samplers_yield_expected_orders_and_batches():
    assert list(data.IntervalSampler(10, 4)) == [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]
    assert list(data.IntervalSampler(10, 4, rollover=False)) == [0, 4, 8]
    assert len(data.IntervalSampler(10, 4, rollover=False)) == 3
    np.random.seed(1)
    first = list(data.RandomSampler(50))
    assert sorted(first) == list(range(50)) and first != sorted(first)
    np.random.seed(1)
    assert list(data.RandomSampler(50)) == first
    for last_batch, expected in (("keep", [4, 4, 2]), ("discard", [4, 4]), ("rollover", [4, 4])):
        sampler = data.BatchSampler(data.SequentialSampler(10), 4, last_batch)
        assert len(sampler) == len(expected)
        assert [len(batch) for batch in sampler] == expected
    assert len(sampler) == 3 and [len(batch) for batch in sampler] == [4, 4, 4]
    with pytest.raises(ValueError):
        data.BatchSampler(data.SequentialSampler(10), 4, "drop")
    with pytest.raises(ValueError):
        data.BatchSampler(data.SequentialSampler(10), 0)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_split_sampler_parts_join_to_the_same_batches(parts):
    def batches(parts):
        samplers = [data.SplitSampler(50, parts, part, batch_size=12) for part in range(parts)]
        assert {len(sampler) for sampler in samplers} == {4}
        return [[sum(pieces, []) for pieces in zip(*samplers, strict=True)] for _ in range(2)]

    first, second = batches(parts)
    assert (first, second) == tuple(batches(1)) and first != second
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [12] * 4 and len(set(sum(epoch, []))) == 48
    later = data.SplitSampler(50, 1, 0, batch_size=12)
    later.set_epoch(1)
    assert list(later) == second
    whole = data.DataLoader(
        data.SimpleDataset(list(range(50))), batch_sampler=data.SplitSampler(50, 1, 0, 12)
    )
    assert [batch.asnumpy().tolist() for batch in whole] == first


def test_split_sampler_parts_are_disjoint_and_equal_in_size():
    parts = [list(data.SplitSampler(11, 3, part, seed=5)) for part in range(3)]
    assert [len(part) for part in parts] == [3] * 3 and len(set(sum(parts, []))) == 9
    assert parts != [list(data.SplitSampler(11, 3, part, seed=6)) for part in range(3)]
    assert list(data.SplitSampler(5, 2, 1, shuffle=False)) == [2, 3]
    assert list(data.SplitSampler(3, shuffle=False)) == [0, 1, 2]  # one process: one part


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((10, 2, 2), "part_index must be 0 to 1 for 2 parts, not 2"),
        ((10, 2, -1), "not -1"),
        ((10, 0, 0), "part_index"),
        ((10, 3, 0, 8), "8 samples cannot be divided into 3 equal parts"),
        ((10, 2, 0, 0), "0 samples"),
        ((10, 2, 0, 12), "10 samples are fewer than a batch of 12"),
        ((2, 3, 0), "2 samples are fewer than the 3 parts"),
    ],
)
def test_split_sampler_rejects_invalid_parts(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.SplitSampler(*arguments)


# --- Batches ---


def test_loader_yields_batches_in_order(way):
    loader = data.DataLoader(data.ArrayDataset(VALUES, LABELS), batch_size=4, **way)
    assert len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        np.testing.assert_array_equal(np.concatenate([x.asnumpy() for x, _ in batches]), VALUES)
        np.testing.assert_array_equal(np.concatenate([y.asnumpy() for _, y in batches]), LABELS)
        assert all(
            isinstance(y, mx.nd.NDArray) and y.dtype == np.int32 and y.context == mx.cpu(0)
            for _, y in batches
        )


def test_loader_batches_framework_arrays(way):
    loader = data.DataLoader(
        data.ArrayDataset(mx.nd.array(VALUES), mx.nd.array(LABELS)),
        batch_size=3,
        last_batch="discard",
        **way,
    )
    batches = list(loader)
    assert len(batches) == 3 and batches[0][0].shape == (3, 2)
    np.testing.assert_array_equal(batches[1][0].asnumpy(), VALUES[3:6])


def test_shuffled_epochs_differ_and_are_complete(way):
    loader = data.DataLoader(LABELS, batch_size=3, shuffle=True, **way)
    rounds = [np.concatenate([b.asnumpy() for b in loader]) for _ in range(3)]
    assert all(sorted(r) == list(range(10)) for r in rounds)
    assert any(not np.array_equal(rounds[0], r) for r in rounds[1:])


def test_loader_passes_large_batches_unchanged(way):
    values = np.random.default_rng(0).normal(size=(8, 300, 301)).astype("float32")
    for batch, expected in zip(
        data.DataLoader(values, batch_size=4, **way), (values[:4], values[4:])
    ):
        np.testing.assert_array_equal(batch.asnumpy(), expected)


def own_batch(samples):
    return {
        "n": len(samples),
        "values": [mx.nd.array(s) * 2 for s in samples],
        "host": np.stack(samples),
        "text": "x" * 5000,
    }


def test_custom_batchify_returns_nested_results(way):
    for i, batch in enumerate(data.DataLoader(VALUES, batch_size=5, batchify_fn=own_batch, **way)):
        assert batch["n"] == 5 and batch["text"] == "x" * 5000
        np.testing.assert_array_equal(batch["host"], VALUES[5 * i : 5 * i + 5])
        np.testing.assert_array_equal(batch["values"][1].asnumpy(), VALUES[5 * i + 1] * 2)


def test_loader_batches_empty_samples_and_empty_data_sets(way):
    batches = list(
        data.DataLoader(data.SimpleDataset([np.zeros((0, 3), "float32")] * 3), batch_size=2, **way)
    )
    assert [b.shape for b in batches] == [(2, 0, 3), (1, 0, 3)]
    assert list(data.DataLoader([], batch_size=2, **way)) == []


def test_loader_accepts_batch_sampler_and_auto_reload(way):
    loader = data.DataLoader(
        LABELS,
        batch_sampler=data.BatchSampler(data.IntervalSampler(10, 5), 2),
        auto_reload=True,
        **way,
    )
    for _ in range(2):
        assert [b.asnumpy().tolist() for b in loader] == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]


def test_loader_supports_concurrent_and_abandoned_iterators(way):
    loader = data.DataLoader(LABELS, batch_size=2, **way)
    for a, b in zip(loader, loader):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    for first in loader:
        break
    assert [b.asnumpy().tolist() for b in loader][0] == first.asnumpy().tolist() == [0, 1]


def test_loader_and_shard_reject_invalid_arguments():
    for options in (
        {},
        {"batch_size": 2, "shuffle": True, "sampler": data.SequentialSampler(10)},
        {"batch_size": 2, "batch_sampler": data.BatchSampler(data.SequentialSampler(10), 2)},
        {"batch_size": 2, "timeout": 0},
    ):
        with pytest.raises(ValueError) as caught:
            data.DataLoader(LABELS, **options)
        assert isinstance(caught.value, AssertionError) == ("timeout" in options)
    for shard, words in (((2, 2), "0 to 1 of 2"), ((2, -1), "0 to 1"), ((0, 0), "at least 1")):
        with pytest.raises(AssertionError, match=words):
            data.SimpleDataset(LABELS).shard(*shard)


@pytest.mark.parametrize(
    "samples, error, words",
    [
        ([np.ones(2), np.ones(3)], ValueError, r"shapes '\(2,\)', '\(3,\)'.*batchify_fn"),
        ([mx.nd.ones(2), mx.nd.ones(3)], mx.MXNetError, r"shapes '\(2,\)', '\(3,\)'"),
        ([(1, mx.nd.ones(2)), (2, mx.nd.ones((2, 1)))], ValueError, r"shapes '\(2,\)', '\(2, 1\)'"),
        ([[1, 2], [3]], ValueError, r"shapes '\(2,\)', '\(1,\)'"),
        ([{"a": 1}] * 2, TypeError, "got dict; pass a batchify_fn"),
        (["x", "yy"], TypeError, "got str"),
        ([None, None], TypeError, "got NoneType"),
        ([mx.nd.ones(2), mx.nd.ones(2, dtype="int32")], mx.MXNetError, "must be float32.*astype"),
        ([mx.nd.ones(2), np.ones(2, "int32")], mx.MXNetError, "must be float32.*astype"),
    ],
)
def test_samples_that_cannot_be_batched_raise(way, samples, error, words):
    with pytest.raises(error, match=words):
        list(data.DataLoader(data.SimpleDataset(samples), 2, **way))


@pytest.mark.parametrize(
    "samples, dtype",
    [
        ([mx.nd.ones(2), np.ones(2, "float32")], "float32"),
        ([mx.nd.ones(2), np.ones(2)], "float32"),
        ([np.ones(2), mx.nd.ones(2)], "float64"),
        ([mx.nd.ones(2, dtype="bfloat16")] * 2, "bfloat16"),
        ([np.ones(2, "int32"), np.ones(2)], "float64"),
    ],
)
@pytest.mark.parametrize("batchify", [None, data.dataloader.default_mp_batchify_fn])
def test_mixed_samples_are_batched_in_the_promoted_dtype(way, samples, dtype, batchify):
    (batch,) = data.DataLoader(data.SimpleDataset(samples), 2, batchify_fn=batchify, **way)
    assert batch.dtype == mx.nd.ones(1, dtype=dtype).dtype
    assert batch.astype("float32").asnumpy().tolist() == [[1, 1], [1, 1]]


def stacked(samples):
    return mx.nd.stack(*samples)


@pytest.mark.parametrize("batchify", [None, stacked])
def test_batches_stay_on_the_device_of_their_samples(way, batchify):
    samples = data.SimpleDataset([mx.nd.ones(2)] * 2)
    with mx.cpu(1):
        (batch,) = data.DataLoader(samples, 2, batchify_fn=batchify, **way)
    assert batch.context == mx.cpu(0)


# --- Worker processes ---


def random_sample(i):
    return np.random.rand(2).astype("float32")


def test_loaders_draw_different_numbers_until_numpy_is_seeded():
    def numbers():
        samples = Function(4, lambda i: np.random.uniform(size=2))
        return [batch.asnumpy() for batch in data.DataLoader(samples, 2, num_workers=1)]

    np.random.seed(5)
    first, second = numbers(), numbers()
    state = np.random.get_state()
    third = numbers()
    assert not any(np.array_equal(*pair) for pair in zip(first, second))
    assert not any(np.array_equal(*pair) for pair in zip(second, third))
    np.random.set_state(state)
    assert np.array_equal(numbers(), third)
    draws = np.random.standard_normal(4)
    np.random.seed(5)
    assert np.array_equal(np.random.standard_normal(4), draws)
    np.random.seed(5)
    assert np.array_equal(numbers(), first) and np.array_equal(numbers(), second)


def test_random_numbers_do_not_depend_on_worker_count():
    def draw(workers):
        np.random.seed(5)
        loader = data.DataLoader(Function(8, random_sample), batch_size=2, num_workers=workers)
        return [np.concatenate([b.asnumpy() for b in loader]) for _ in range(2)]

    one, three = draw(1), draw(3)
    np.testing.assert_array_equal(one, three)
    assert len(np.unique(np.concatenate(one))) == 32


def test_workers_can_compute_with_arrays():
    def sample(i):
        x = mx.nd.ones((100, 100)) * i
        return mx.nd.dot(x, x)

    mx.nd.dot(
        mx.nd.ones((100, 100), ctx=mx.cpu(1)), mx.nd.ones((100, 100), ctx=mx.cpu(1))
    ).wait_to_read()
    loader = data.DataLoader(Function(4, sample), batch_size=2, num_workers=2, timeout=60)
    assert [b.asnumpy()[:, 0, 0].tolist() for b in loader] == [[0, 100], [400, 900]]


class Odd(Exception):
    def __init__(self, number, more):
        super().__init__(f"sample {number} is odd")


def failing(i):
    if i == 5:
        raise KeyError("no sample 5")
    return float(i)


def failing_oddly(i):
    raise Odd(i, None)


def test_loader_raises_data_set_errors_and_stays_usable(way):
    loader = data.DataLoader(Function(8, failing), batch_size=2, **way)
    for _ in range(2):
        got = []
        with pytest.raises(KeyError, match="no sample 5"):
            for batch in loader:
                got.append(batch.asnumpy().tolist())
        assert got == [[0, 1], [2, 3]]


def test_unpicklable_worker_error_is_raised_as_text():
    with pytest.raises(RuntimeError, match="sample 0 is odd"):
        list(data.DataLoader(Function(2, failing_oddly), batch_size=2, num_workers=1))


def dying(i):
    if i == 5 and os.environ.get("DATA_TEST_DIES") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return float(i)


def test_killed_worker_raises_at_once(monkeypatch):
    monkeypatch.setenv("DATA_TEST_DIES", "1")
    loader = data.DataLoader(Function(8, dying), batch_size=2, num_workers=2, timeout=100_000)
    with pytest.raises(RuntimeError, match="killed by SIGKILL"):
        list(loader)
    monkeypatch.setenv("DATA_TEST_DIES", "0")
    assert len(list(loader)) == 4


def leaving(i):
    sys.exit(3)


def test_exited_worker_raises_with_its_exit_code():
    with pytest.raises(RuntimeError, match="exited with code 3"):
        list(data.DataLoader(Function(8, leaving), batch_size=2, num_workers=1))


def slow(i):
    time.sleep(600)


@pytest.mark.parametrize("way", ["processes", "threads"])
def test_slow_batch_raises_picklable_timeout_error(way):
    ended = threading.Event()
    loader = data.DataLoader(
        Function(2, (lambda i: ended.wait()) if way == "threads" else slow),
        batch_size=2,
        timeout=0.2,
        **WAYS[way],
    )
    with pytest.raises(TimeoutError, match="0.2 s") as caught:
        list(loader)
    ended.set()
    assert isinstance(caught.value, multiprocessing.TimeoutError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


SCRIPT = """
import os, sys, time
import numpy as np
import mpgluon as mx
from mpgluon.gluon import data
class Slow(data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.05)
        return float(i)
loader = data.DataLoader(Slow(), batch_size=1, num_workers=2)
for n in range(2):
    try:
        for batch in loader:
            print([p.pid for p in __import__('multiprocessing').active_children()], flush=True)
            if n: break
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("done", flush=True)
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start_script():
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return child, eval(child.stdout.readline())


def test_ctrl_c_interrupts_the_loop_and_ends_all_workers():
    child, workers = start_script()
    os.killpg(child.pid, signal.SIGINT)  # a terminal signals the whole process group
    out, err = child.communicate(timeout=30)
    assert "interrupted" in out and out.rstrip().endswith("done") and "Traceback" not in err, (
        out,
        err,
    )
    assert not any(alive(pid) for pid in workers)


def test_workers_end_when_their_parent_is_killed():
    child, workers = start_script()
    child.kill()
    child.wait()
    child.stdout.close()
    child.stderr.close()
    end = time.time() + 120
    while time.time() < end and any(alive(pid) for pid in workers):
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)


def test_workers_end_with_the_loader():
    loader = data.DataLoader(LABELS, batch_size=2, num_workers=2)
    list(loader)
    pids = [process.pid for process, _ in loader._pool._workers]
    descriptors = len(os.listdir("/proc/self/fd"))
    del loader
    assert not any(alive(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) < descriptors


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "thread_pool": True}]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64", "bool"])
def test_writing_to_a_batch_keeps_the_data_set(options, dtype):
    values = np.arange(24).reshape(6, 4).astype(dtype)
    dataset = data.ArrayDataset(values, list(range(6)))
    batches = list(data.DataLoader(dataset, 3, **options))
    for batch, _ in batches:
        batch[:] = 1
    np.testing.assert_array_equal(values, np.arange(24).reshape(6, 4).astype(dtype))
    for (batch, labels), begin in zip(data.DataLoader(dataset, 3, **options), (0, 3)):
        assert batch.dtype == values.dtype and batch.context == mx.cpu(0)
        np.testing.assert_array_equal(batch.asnumpy(), values[begin : begin + 3])
        np.testing.assert_array_equal(labels.asnumpy(), range(begin, begin + 3))
    with mx.cpu(1):  # pool threads do not inherit the current context
        (batch, _), *_ = data.DataLoader(dataset, 3, **options)
        assert batch.context == mx.cpu(0 if "thread_pool" in options else 1)


def test_pin_memory_pins_every_array_of_a_batch(way):
    """Holds for any batch structure; a network on `cpu(0)` accepts pinned arrays."""
    pinned = mx.cpu_pinned(0)
    samples = data.ArrayDataset(VALUES, LABELS)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=2))
    net.initialize()
    for hybrid in (False, True):
        net.hybridize(hybrid)
        for x, y in data.DataLoader(samples, 4, pin_memory=True, **way):
            assert (x.context, y.context) == (pinned, pinned)
            with mx.autograd.record():
                out = net(x)
            out.backward()
            assert out.context == mx.cpu(0) and (x + out.sum()).context == mx.cpu(0)
            first = int(y[0].asscalar())
            assert (x.asnumpy() == VALUES[first : first + 4]).all()
    assert net[0].weight.data(pinned) is net[0].weight.data()

    def batchify(batch):
        return {"x": mx.nd.array([x for x, _ in batch]), "n": (len(batch), mx.nd.ones(1))}

    for batch in data.DataLoader(
        samples, 5, batchify_fn=batchify, pin_memory=True, pin_device_id=1, **way
    ):
        number, one = batch["n"]
        assert number == 5 and batch["x"].context == one.context == mx.cpu_pinned(1)

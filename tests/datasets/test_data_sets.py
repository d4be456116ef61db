"""Streams, subsets, weighted samples and packed tokens."""

import itertools
import os
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import data

WORKERS = [
    pytest.param({}, id="no workers"),
    pytest.param({"num_workers": 1}, id="1 process"),
    pytest.param({"num_workers": 2}, id="2 processes"),
    pytest.param({"num_workers": 3, "prefetch": 1}, id="3 processes"),
    pytest.param({"num_workers": 2, "thread_pool": True}, id="2 threads"),
]


class Count(data.IterableDataset):
    """The numbers below `count`."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        yield from range(self.count)


class Shared(Count):
    """The same numbers, of which each worker yields its share."""

    def __iter__(self):
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.count, step)


def lists(loader):
    return [batch.asnumpy().tolist() for batch in loader]


# --- IterableDataset ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 6, 7])
def test_stream_gives_the_same_batches_for_any_number_of_workers(count, options):
    expected = [list(range(i, min(count, i + 3))) for i in range(0, count, 3)]
    loader = data.DataLoader(Count(count), batch_size=3, **options)
    assert lists(loader) == expected
    assert lists(loader) == expected  # a second round


@pytest.mark.parametrize("options", WORKERS)
def test_stream_drops_an_incomplete_batch(options):
    loader = data.DataLoader(Count(7), batch_size=3, last_batch="discard", **options)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5]]


def test_worker_that_asks_gets_its_own_share():
    loader = data.DataLoader(Shared(9), batch_size=2, num_workers=2)
    assert lists(loader) == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]
    assert lists(data.DataLoader(Shared(3), batch_size=2)) == [[0, 1], [2]]
    # A worker without samples ends at once.
    assert lists(data.DataLoader(Shared(1), batch_size=2, num_workers=3)) == [[0]]


def test_shares_of_unequal_length_are_read_to_the_end():
    class Uneven(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return iter([100 * info.id + i for i in range(4 if info.id else 1)])

    assert lists(data.DataLoader(Uneven(), batch_size=1, num_workers=2)) == [
        [0],
        [100],
        [101],
        [102],
        [103],
    ]


def test_worker_info_describes_the_worker():
    class Infos(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            yield info.id, info.num_workers, os.getpid(), info.dataset is self, info.seed

    assert data.get_worker_info() is None
    loader = data.DataLoader(Infos(), batch_size=1, num_workers=2)
    found = [[part.asnumpy().tolist()[0] for part in batch] for batch in loader]
    assert [row[:2] for row in found] == [[0, 2], [1, 2]]
    assert len({row[2] for row in found} - {os.getpid()}) == 2
    assert all(row[3] for row in found) and found[0][4] != found[1][4]


def test_worker_info_in_a_data_set_with_indices():
    class Workers(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, idx):
            info = data.get_worker_info()
            return (idx, -1) if info is None else (idx, info.num_workers)

    for workers in (0, 2):
        found = list(data.DataLoader(Workers(), 4, num_workers=workers))[0][1].asnumpy()
        assert found.tolist() == [workers or -1] * 4


def test_asking_for_the_worker_too_late_raises():
    class Late(data.IterableDataset):
        def __iter__(self):
            yield 0
            data.get_worker_info()
            yield 1

    loader = data.DataLoader(Late(), batch_size=2, num_workers=1)
    with pytest.raises(RuntimeError, match="at the start of __iter__"):
        list(loader)


class Noise(data.IterableDataset):
    def __init__(self, asks):
        self.asks = asks

    def __iter__(self):
        if self.asks:
            data.get_worker_info()
        for _ in range(6):
            yield np.random.rand(), float(mx.nd.random.uniform(shape=1).asscalar())


def noise(asks, workers, seed=4):
    np.random.seed(seed)
    loader = data.DataLoader(Noise(asks), batch_size=2, num_workers=workers)
    return [[part.asnumpy().tolist() for part in batch] for batch in loader]


def test_random_streams_are_reproducible_and_independent_of_workers():
    assert noise(False, 1) == noise(False, 1) == noise(False, 2) == noise(False, 3)
    assert noise(False, 1) != noise(False, 1, seed=5)


def test_shares_have_different_random_numbers():
    first, second, *_ = found = noise(True, 2)
    assert len(found) == 6 and first != second
    assert found == noise(True, 2)


@pytest.mark.parametrize("options", WORKERS)
def test_error_in_a_stream_is_raised(options):
    class Broken(data.IterableDataset):
        def __iter__(self):
            yield from (0, 1, 2)
            raise KeyError("line 3")

    loader = data.DataLoader(Broken(), batch_size=2, **options)
    for _ in range(2):
        batches = iter(loader)
        assert next(batches).asnumpy().tolist() == [0, 1]
        with pytest.raises(KeyError, match="line 3"):
            list(batches)


@pytest.mark.parametrize("options", WORKERS)
def test_endless_stream_can_be_left_and_restarted(options):
    class Endless(data.IterableDataset):
        def __iter__(self):
            return itertools.count()

    loader = data.DataLoader(Endless(), batch_size=2, **options)
    for _ in range(8):
        assert lists(itertools.islice(loader, 3)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("options", WORKERS)
def test_leaving_a_stream_does_not_wait_for_its_next_sample(options):
    """A leaving iteration must not wait for a thread that reads a stream, perhaps forever."""
    left = threading.Event()

    class Waiting(data.IterableDataset):
        def __iter__(self):
            yield from range(4)
            left.wait(30)
            yield 4

    loader = data.DataLoader(Waiting(), batch_size=2, timeout=0.5, **options)
    start = time.monotonic()
    try:
        for _ in loader:
            break
        if options:  # without workers, the stream itself would wait
            with pytest.raises(TimeoutError):
                list(loader)
        assert time.monotonic() - start < 10
    finally:
        left.set()


@pytest.mark.parametrize("options", WORKERS)
def test_two_iterations_of_a_stream_can_be_interleaved(options):
    loader = data.DataLoader(Count(6), batch_size=2, **options)
    for one, other in zip(loader, loader):
        assert one.asnumpy().tolist() == other.asnumpy().tolist()


def test_stream_transforms_and_filters():
    stream = Count(6).filter(lambda x: x % 2).transform(lambda x: (x, 10 * x))
    assert list(stream) == [(1, 10), (3, 30), (5, 50)]
    assert list(stream.transform_first(lambda x: -x)) == [(-1, 10), (-3, 30), (-5, 50)]
    whole = stream.transform(lambda a, b: a + b, lazy=False)
    assert isinstance(whole, data.SimpleDataset) and whole[2] == 55
    loader = data.DataLoader(stream, batch_size=3, num_workers=2)
    assert [part.asnumpy().tolist() for part in next(iter(loader))] == [[1, 3, 5], [10, 30, 50]]


def test_stream_has_a_length_only_if_it_defines_one():
    class Sized(Count):
        def __len__(self):
            return self.count

    assert len(data.DataLoader(Sized(7), 3)) == 3
    assert len(data.DataLoader(Sized(7), 3, last_batch="discard")) == 2
    assert len(Sized(7).transform(abs)) == 7
    loader = data.DataLoader(Count(7), 3)
    with pytest.raises(TypeError, match="the length of Count is unknown"):
        len(loader)
    assert "batch_size: 3" in repr(loader) and "batches: 3" in repr(data.DataLoader(Sized(7), 3))


def test_repr_of_loader_with_batch_sampler_of_unknown_length():
    class Pairs:
        def __iter__(self):
            return iter([[0, 1], [2]])

    loader = data.DataLoader(data.SimpleDataset([1, 2, 3]), batch_sampler=Pairs())
    assert repr(loader).startswith("DataLoader(SimpleDataset") and "batch" not in repr(loader)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"shuffle": True}, "no indices"),
        ({"sampler": data.SequentialSampler(3)}, "no indices"),
        ({"last_batch": "rollover"}, "'keep' or 'discard' for an IterableDataset"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": None}, "batch_size must be given"),
    ],
)
def test_stream_refuses_options_that_need_indices(options, message):
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Count(3), **{"batch_size": 2, **options})


def test_stream_refuses_what_needs_indices():
    stream = Count(3)
    for wrong in (
        lambda: stream[0],
        lambda: stream.take(1),
        lambda: stream.shard(2, 0),
        lambda: stream + stream,
        lambda: data.ConcatDataset([stream]),
        lambda: data.random_split(stream, [1.0]),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(NotImplementedError, match="must define __iter__"):
        iter(data.IterableDataset())


def test_estimator_style_pinned_and_custom_batches_of_streams():
    loader = data.DataLoader(Count(4), 2, batchify_fn=sum, num_workers=2)
    assert list(loader) == [1, 5]
    assert lists(data.DataLoader(Count(4), 2, pin_memory=True)) == [[0, 1], [2, 3]]


# --- Subsets --------------------------------------------------------------------------------------


def test_subset_selects_indices_in_order():
    subset = data.Subset(data.ArrayDataset(nd.arange(5), list("abcde")), (4, 0, -1))
    assert len(subset) == 3
    assert [subset[i][1] for i in range(3)] == ["e", "a", "e"] and subset[-1][1] == "e"
    assert subset.indices == [4, 0, -1] and repr(subset) == "Subset(samples: 3)"
    with pytest.raises(IndexError):
        subset[3]


def test_concat_dataset_numbers_samples_in_sequence():
    first, second = data.SimpleDataset([0, 1]), data.SimpleDataset([2, 3, 4])
    joined = data.ConcatDataset([first, data.SimpleDataset([]), second])
    assert len(joined) == 5 and list(joined) == [0, 1, 2, 3, 4]
    assert joined[-1] == 4 and joined[-5] == 0 and joined.cumulative_sizes == [2, 2, 5]
    assert list(first + second) == list(joined)
    assert lists(data.DataLoader(joined, 2, num_workers=2)) == [[0, 1], [2, 3], [4]]
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 5 samples"):
            joined[index]
    with pytest.raises(ValueError, match="at least one"):
        data.ConcatDataset([])


@pytest.mark.parametrize(
    "size, lengths, expected",
    [
        (10, [7, 3], [7, 3]),
        (10, [0.5, 0.25, 0.25], [6, 2, 2]),
        (10, [1.0], [10]),
        (1, [0.5, 0.5], [1, 0]),
        (1, [1], [1]),
        (0, [0.9, 0.1], [0, 0]),
        (10, [10, 0], [10, 0]),
    ],
)
def test_random_split_partitions_the_samples(size, lengths, expected):
    parts = data.random_split(data.SimpleDataset(range(size)), lengths)
    assert [len(part) for part in parts] == expected
    assert sorted(itertools.chain(*parts)) == list(range(size))


def test_random_split_is_reproducible():
    samples = data.SimpleDataset(range(50))

    def split(seed=None):
        return [list(part) for part in data.random_split(samples, [20, 30], seed)]

    assert split(1) == split(1) != split(2)
    np.random.seed(3)
    first = split()
    np.random.seed(3)
    assert split() == first != split()


@pytest.mark.parametrize(
    "lengths", [[5, 6], [0.5, 0.6], [11, -1], [9.5, 0.5], [], [np.nan], [np.inf]]
)
def test_random_split_refuses_other_lengths(lengths):
    with pytest.raises(ValueError, match="lengths must"):
        data.random_split(data.SimpleDataset(range(10)), lengths)


# --- WeightedRandomSampler ------------------------------------------------------------------------


def test_weighted_sampler_follows_its_weights():
    np.random.seed(0)
    sampler = data.WeightedRandomSampler([1, 0, 3], 4000)
    drawn = list(sampler)
    assert len(drawn) == len(sampler) == 4000 and set(drawn) == {0, 2}
    assert abs(drawn.count(2) / 4000 - 0.75) < 0.03
    assert all(isinstance(index, int) for index in drawn)


def test_weighted_sampler_is_reproducible_and_redraws():
    sampler = data.WeightedRandomSampler(nd.ones(20), 10)
    np.random.seed(1)
    first, second = list(sampler), list(sampler)
    np.random.seed(1)
    assert list(sampler) == first != second


def test_weighted_sampler_without_replacement_draws_each_index_once():
    sampler = data.WeightedRandomSampler([1, 2, 0, 1], 3, replacement=False)
    for _ in range(5):
        assert sorted(sampler) == [0, 1, 3]
    loader = data.DataLoader(data.SimpleDataset([5, 6, 7, 8]), 3, sampler=sampler, num_workers=2)
    assert sorted(lists(loader)[0]) == [5, 6, 8]


def test_weighted_sampler_accepts_weights_whose_sum_overflows():
    sampler = data.WeightedRandomSampler([1e308, 1e308, 0], 20)
    assert set(sampler) == {0, 1}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([1, -1], 1), "not negative"),
        (([1, np.nan], 1), "finite"),
        (([[1]], 1), "sequence"),
        (([], 1), "above 0"),
        (([0, 0], 1), "above 0"),
        (([1], 0), "num_samples must be at least 1"),
        (([1, 0], 2, False), "at most 1"),
    ],
)
def test_weighted_sampler_refuses_wrong_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.WeightedRandomSampler(*arguments)


# --- Packed tokens --------------------------------------------------------------------------------

LENGTH = 16


def documents(count=60, seed=0, most=40):
    """Documents whose tokens are unique, so that each one tells where it came from."""
    random = np.random.RandomState(seed)
    ends = np.cumsum(random.randint(0, most, count))
    return [list(range(1 + begin, 1 + end)) for begin, end in zip([0, *ends], ends)]


def check_rows(rows, source):
    """Checks all rows, and returns the number of padded positions."""
    following = {one: other for document in source for one, other in zip(document, document[1:])}
    found, padded = [], 0
    for tokens, labels, segments, positions in rows:
        for part in (tokens, labels, segments, positions):
            assert part.dtype == np.int32 and part.shape == (LENGTH,)
        used = segments > 0
        padded += int((~used).sum())
        assert not tokens[~used].any() and (labels[~used] == -100).all()
        found += tokens[used].tolist()
        assert labels[used].tolist() == [following.get(token, -100) for token in tokens[used]]
        assert (np.diff(segments[used]) >= 0).all()
        for segment in range(1, segments.max() + 1):
            part = tokens[segments == segment]
            assert positions[segments == segment].tolist() == list(range(len(part)))
            assert (np.diff(part) == 1).all()
    assert sorted(found) == sorted(itertools.chain(*source))
    return padded


@pytest.mark.parametrize("how", ["best_fit", "concat"])
def test_packed_rows_hold_each_token_once(how):
    source = documents()
    rows = data.PackedTokens(source, LENGTH, how)
    padded = check_rows(rows, source)
    total = sum(map(len, source))
    assert len(rows) * LENGTH == total + padded
    assert f"padding: {padded / (total + padded):.1%}" in repr(rows)
    if how == "concat":
        assert padded < LENGTH


def test_best_fit_keeps_documents_whole():
    source = documents(most=LENGTH + 1)
    rows = data.PackedTokens(source, LENGTH)
    check_rows(rows, source)
    pieces = sum(int(row[2].max()) for row in rows)
    assert pieces == sum(map(bool, source))
    # 60 % of the rows that one row per document would take
    assert len(rows) < 0.7 * pieces


def test_concat_discards_an_incomplete_row():
    rows = data.PackedTokens([[1] * 10, [2] * 10], 8, "concat", last_row="discard")
    assert len(rows) == 2 and all(row[2].min() > 0 for row in rows)
    assert len(data.PackedTokens([[1] * 8], 8, "concat", last_row="discard")) == 1
    assert len(data.PackedTokens([], 8, "concat", last_row="discard")) == 0


def test_eos_ends_each_document():
    rows = data.PackedTokens([[5, 6], [], [7]], 8, eos=2, pad=9, ignore_index=-1)
    tokens, labels, segments, _ = rows[0]
    assert len(rows) == 1
    assert tokens.tolist() == [5, 6, 2, 7, 2, 9, 9, 9]
    assert labels.tolist() == [6, 2, -1, 2, -1, -1, -1, -1]
    assert segments.tolist() == [1, 1, 1, 2, 2, 0, 0, 0]


@pytest.mark.parametrize("kind", [np.array, nd.array, tuple])
def test_documents_may_be_arrays(kind):
    rows = data.PackedTokens(data.SimpleDataset([kind([3, 4]), kind([5])]), 3)
    assert rows[0][0].tolist() == [3, 4, 5]


@pytest.mark.parametrize("last_row", ["keep", "discard"])
def test_token_stream_equals_concatenated_rows(last_row):
    source = documents(seed=1)
    expected = list(data.PackedTokens(source, LENGTH, "concat", last_row=last_row))
    stream = data.PackedTokenStream(source, LENGTH, last_row=last_row)
    for _ in range(2):
        for row, other in zip(stream, expected, strict=True):
            np.testing.assert_array_equal(row, other)


@pytest.mark.parametrize("options", WORKERS)
def test_packed_rows_in_a_loader(options):
    source = documents()
    for rows in (data.PackedTokens(source, LENGTH), data.PackedTokenStream(source, LENGTH)):
        batches = list(data.DataLoader(rows, 4, **options))
        assert all(part.dtype == np.int32 for batch in batches for part in batch)
        joined = [np.concatenate([part.asnumpy() for part in parts]) for parts in zip(*batches)]
        check_rows(zip(*joined), source)


def test_packed_rows_shuffle_by_seed():
    rows = data.PackedTokens(documents(), LENGTH)
    orders = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        orders.append([batch[0].asnumpy().tolist() for batch in data.DataLoader(rows, 4, True)])
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: data.PackedTokens([[1]], 0), "length must be at least 1"),
        (lambda: data.PackedTokens([[1]], 2, "first_fit"), "'best_fit' or 'concat'"),
        (lambda: data.PackedTokens([[1]], 2, last_row="drop"), "'keep' or 'discard'"),
        (lambda: data.PackedTokens([[[1]]], 2), r"has the shape \(1, 1\)"),
        (lambda: data.PackedTokens([[1.5]], 2), "must be integers"),
        (lambda: data.PackedTokens([[2**31]], 2), "must be integers below"),
        (lambda: data.PackedTokens([[np.nan]], 2), "must be integers below"),
        (lambda: data.PackedTokens([[1]], 2, eos=1.5), "eos must be an integer below .*1.5"),
        (lambda: data.PackedTokens([[1]], 2, eos=2**31), "eos must be an integer below"),
        (lambda: data.PackedTokens([[1]], 2, pad=None), "pad must be an integer"),
        (lambda: data.PackedTokenStream([[1]], 2, last_row="drop"), "'keep' or 'discard'"),
        (lambda: list(data.PackedTokenStream([3], 2)), r"has the shape \(\)"),
    ],
)
def test_packing_refuses_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_packing_refuses_a_stream_without_length():
    with pytest.raises(TypeError, match="PackedTokenStream"):
        data.PackedTokens(Count(3), 2)


def test_packed_rows_train_a_head():
    """Segments separate documents, and the loss ignores positions without a next token."""
    head = gluon.nn.Dense(200, flatten=False, use_bias=False)
    head.initialize(mx.init.Zero())
    loss = gluon.loss.LinearCrossEntropyLoss(head)
    rows = data.PackedTokens(documents(count=6, most=12), LENGTH)
    tokens, labels, segments, _ = next(iter(data.DataLoader(rows, len(rows))))
    value = loss(nd.one_hot(tokens, depth=4), labels)
    np.testing.assert_allclose(value.asnumpy(), np.log(200), rtol=1e-6)

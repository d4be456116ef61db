"""Contexts, memory statistics, execution modes and package information."""

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd
from support.processes import output_of


def test_contexts_compare_and_print_by_type_and_index():
    assert (
        repr(mx.cpu()) == str(mx.cpu(0)) == "cpu(0)"
        and repr(mx.gpu(2)) == "gpu(2)"
        and repr(mx.cpu_pinned(1)) == "cpu_pinned(1)"
    )
    assert (
        mx.cpu(1)
        == mx.Context("cpu", 1)
        == mx.Context(1, 1)
        == mx.Context(mx.cpu(1))
        == mx.Context(device_type="cpu", device_id=1)
    )
    assert (
        mx.cpu(1) != mx.cpu(0)
        and mx.cpu(0) != mx.gpu(0)
        and mx.cpu(0) != "cpu(0)"
        and not mx.cpu(0) == None  # noqa: E711
    )
    assert len({mx.cpu(0), mx.cpu(0), mx.cpu(1), mx.gpu(0)}) == 3
    context = mx.gpu(3)
    assert (context.device_type, context.device_typeid, context.device_id) == ("gpu", 2, 3)
    assert pickle.loads(pickle.dumps(context)) == context and mx.cpu(device_id=2) == mx.cpu(2)
    assert mx.context.num_gpus() >= 0


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: mx.cpu(-1), ValueError),
        (lambda: mx.Context("tpu"), ValueError),
        (lambda: mx.Context(77), ValueError),
        (lambda: mx.Context(2**32 + 1), ValueError),
        (lambda: mx.cpu("a"), TypeError),
        (lambda: mx.Context(1.5), TypeError),
        (lambda: mx.cpu(1, 2), TypeError),
        (lambda: mx.cpu(device=1), TypeError),
        (lambda: mx.cpu(2**40), (ValueError, OverflowError)),
    ],
)
def test_invalid_context_raises_error(make, error):
    with pytest.raises(error):
        make()


def test_current_context_follows_nested_with_and_thread():
    assert mx.current_context() == mx.cpu(0)
    context = mx.cpu(1)
    with context as entered:
        assert (
            entered is context
            and mx.current_context() == mx.cpu(1)
            and nd.ones(1).context == mx.cpu(1)
        )
        with mx.cpu(2), context:
            assert mx.current_context() == mx.cpu(1)
        assert mx.current_context() == mx.cpu(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(mx.current_context()))
        thread.start()
        thread.join()
        assert seen == [mx.cpu(0)]
    with pytest.raises(RuntimeError, match="on purpose"):
        with context:
            raise RuntimeError("on purpose")
    assert mx.current_context() == mx.cpu(0)


def test_gpu_context_without_gpu_raises_error():
    if mx.num_gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(mx.MXNetError, match="gpu"):
        nd.zeros(3, ctx=mx.gpu(0))
    assert nd.zeros(3).sum().asscalar() == 0


def test_memory_limit_is_enforced_and_shown_in_memory_stats():
    ctx = mx.cpu(7)
    kept = nd.zeros((256, 1024), ctx=ctx)
    nd.waitall()
    stats = mx.context.memory_stats(ctx)
    assert stats["in_use"] >= 1 << 20 and stats["held"] >= stats["in_use"] and stats["limit"] == 0
    mx.context.set_memory_limit(ctx, 4 << 20)
    try:
        assert mx.context.memory_stats(ctx)["limit"] == 4 << 20
        with pytest.raises(MemoryError) as caught:
            nd.zeros((4096, 1024), ctx=ctx)
        assert isinstance(caught.value, mx.MXNetError) and "cpu(7)" in str(caught.value)
        assert nd.zeros((16, 16), ctx=ctx).sum().asscalar() == 0
    finally:
        mx.context.set_memory_limit(ctx, None)
    del kept
    ctx.empty_cache()
    mx.context.reset_peak_memory(ctx)
    assert mx.context.memory_stats(ctx)["peak_in_use"] <= stats["in_use"]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        mx.context.set_memory_limit(ctx, -1)


def test_engine_mode_changes_keep_results_and_invalid_mode_is_refused():
    assert mx.engine.mode() in ("async", "sync", "shuffle")
    before = mx.engine.mode()
    try:
        for mode in ("sync", "shuffle", "async"):
            mx.engine.set_mode(mode, seed=5)
            assert mx.engine.mode() == mode
            x = nd.ones((3, 3), ctx=mx.cpu(1))
            for _ in range(5):
                x = (x + 1).as_in_context(mx.cpu(2)).as_in_context(mx.cpu(1))
            assert x.asnumpy().tolist() == [[6] * 3] * 3
    finally:
        mx.engine.set_mode(before)
    with pytest.raises(ValueError):
        mx.engine.set_mode("fast")
    with mx.engine.bulk(10):
        nd.ones(2) + 1


def test_set_threads_validates_its_argument():
    mx.context.set_threads(1)
    mx.context.set_threads(0)
    for wrong in (-1, 10**6):
        with pytest.raises(ValueError):
            mx.context.set_threads(wrong)
    nd.ones(1).wait_to_read()
    assert dict(mx.context.opened_devices())[mx.cpu(0)] >= 1


def test_current_line_names_the_users_file_and_function():
    from mpgluon import _core

    def here():
        return _core._current_line()

    assert "test_context.py" in here() and "here" in here()


def test_runtime_features_and_environment_values_are_readable(monkeypatch):
    features = mx.runtime.Features()
    assert features.is_enabled("openmp") and "CUDA" in features
    with pytest.raises(RuntimeError):
        features.is_enabled("no such thing")
    mx.util.setenv("MPG_TEST_VALUE", "3")
    assert mx.util.getenv("MPG_TEST_VALUE") == "3"
    mx.util.setenv("MPG_TEST_VALUE", None)
    assert mx.util.getenv("MPG_TEST_VALUE") is None
    assert not mx.util.is_np_array() and not mx.util.is_np_shape()
    assert mx.__version__ and mx.libinfo.__version__ == mx.__version__


def test_info_lists_versions_and_import_loads_no_heavy_modules():
    text = subprocess.run(
        [sys.executable, "-m", "mpgluon.info"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    for word in (mx.__version__, "Python", "NumPy", "cpu(0)", "oneDNN", "OpenBLAS", "cores"):
        assert word in text
    heavy = ("torch", "scipy", "matplotlib", "PIL", "setuptools", "sysconfig", "tqdm")
    code = (
        f"import sys, numpy; there = set(sys.modules); import mpgluon; print([m for m in {heavy} "
        "if m in set(sys.modules) - there])"
    )
    assert output_of(code).strip() == "[]"
    with pytest.raises(AttributeError):
        mx.no_such_module
    assert "gluon" in dir(mx)


def test_contexts_do_not_leak_references():
    before = sys.getrefcount(mx.Context)
    for i in range(1000):
        mx.Context("cpu", 100 + i)
        np.testing.assert_(mx.cpu(i) == mx.cpu(i))
    assert abs(sys.getrefcount(mx.Context) - before) < 64


def test_side_context_has_device_type_and_repr():
    """Initializers run on the side queue and may inspect the context."""
    side = mx._core.side_context(mx.cpu(1))
    assert (side.device_type, side.device_id, repr(side)) == ("cpu", 1, "cpu(1) side")


def test_pinned_arrays_keep_their_context():
    pinned = mx.cpu_pinned(1)
    made = [
        mx.nd.array([1, 2], ctx=pinned),
        mx.nd.array(mx.nd.ones((2,)), ctx=pinned),
        mx.nd.empty((2,), ctx=pinned),
        mx.nd.zeros((2,), ctx=pinned),
        mx.nd.full((2,), 3, ctx="cpu_pinned(1)"),
        mx.nd.ones((2,)).as_in_context(pinned),
        mx.nd.ones((0,)).copyto(pinned),
    ]
    made[2][:] = 4  # small enough for adding 1 to change the value
    for x in made:
        assert x.context == pinned and x.as_in_context(pinned) is x
        assert x.copy().context == x[:].context == pinned
        assert pickle.loads(pickle.dumps(x)).context == pinned
        assert (x + 1).context == (x + mx.nd.ones((len(x),), ctx=mx.cpu(1))).context == mx.cpu(1)
        plain = x.as_in_context(mx.cpu(1))
        plain += 1
        assert plain.context == mx.cpu(1) and (x.asnumpy() != plain.asnumpy()).all()
    w = mx.nd.ones((3,))
    w.attach_grad()
    with mx.autograd.record():
        y = (2 * w).as_in_context(pinned)
        z = y * y
    z.backward()
    assert y.context == pinned and w.grad.asnumpy().tolist() == [8, 8, 8]
    made.clear()
    pinned.empty_cache()


@pytest.mark.parametrize("text", ["cpu(0)", "cpu(12)", "gpu(3)", "cpu_pinned(1)", "cpu_shared(2)"])
def test_context_parses_its_own_repr(text):
    context = mx.Context(text)
    assert (
        repr(context) == text
        and mx.Context(context.device_type).device_id == 0
        and mx.Context(text, 7).device_id == 7
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu(",
        "cpu()",
        "cpu(0",
        "cpu(0) ",
        "cpu(-1)",
        "cpu_",
        "cpus",
        "cpu(9999999999)",
        "cpu_pinned(0)x",
        "tpu(0)",
    ],
)
def test_invalid_device_string_is_refused(text):
    with pytest.raises(KeyError):
        mx.Context(text)


def test_device_types_have_mxnet_ids():
    for text, number in mx.Context.devstr2type.items():
        assert mx.Context.devtype2str[number] == text
    assert mx.Context.devtype2str[mx.cpu(1).device_typeid] == "cpu"
    assert mx.Context.devtype2str[mx.gpu(0).device_typeid] == "gpu"

"""NDArray: creation, operators, methods, conversion, errors and memory."""

import copy
import gc
import pickle
import sys
import weakref

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import nd

DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]


def test_creation_functions_match_numpy():
    assert nd.zeros((2, 3)).asnumpy().tolist() == [[0] * 3] * 2
    assert nd.ones(3, dtype="int32").asnumpy().tolist() == [1, 1, 1]
    assert nd.full((2,), 2.5).asnumpy().tolist() == [2.5, 2.5]
    assert nd.empty((2, 0, 3)).shape == (2, 0, 3)
    assert nd.arange(2, 10, 3).asnumpy().tolist() == [2, 5, 8]
    assert nd.arange(3, repeat=2).asnumpy().tolist() == [0, 0, 1, 1, 2, 2]
    for wrong in ((0, float("nan")), (float("nan"), 2), (0, 2, float("nan")), (0, float("inf"))):
        with pytest.raises(mx.MXNetError):
            nd.arange(*wrong)
    assert nd.eye(2, 3, 1).asnumpy().tolist() == np.eye(2, 3, 1).tolist()
    np.testing.assert_allclose(nd.linspace(0, 1, 5).asnumpy(), np.linspace(0, 1, 5))
    assert nd.zeros_like(nd.ones((2, 2))).asnumpy().sum() == 0
    assert nd.zeros(2, ctx=mx.cpu(1)).context == mx.cpu(1)


def test_array_dtype_defaults_to_float32_and_can_be_given():
    assert nd.array([1, 2]).dtype == np.float32
    assert nd.array(np.array([1, 2], "float64")).dtype == np.float32
    assert nd.array(np.array([1, 2], "int64")).dtype == np.float32
    assert nd.array(nd.array([1, 2], dtype="int8")).dtype == np.int8
    for dtype in DTYPES:
        for given in (dtype, np.dtype(dtype), np.dtype(dtype).type):
            array = nd.array([0, 1, 1], dtype=given)
            assert array.dtype == np.dtype(dtype).type
            assert array.asnumpy().dtype == np.dtype(dtype) and array.asnumpy().tolist() == [
                0,
                1,
                1,
            ]
    assert (
        nd.array([1], dtype=int).dtype == np.int64
        and nd.array([1], dtype=float).dtype == np.float64
        and nd.array([1], dtype=bool).dtype == np.bool_
    )
    for wrong in ("float31", "complex64", np.complex64, object, np.uint16, 3.5):
        with pytest.raises(TypeError):
            nd.array([1], dtype=wrong)


def test_array_accepts_many_sources_and_copies_them():
    assert nd.array(5).shape == () and nd.array(5).asscalar() == 5
    assert nd.array([]).shape == (0,)
    assert nd.array([[1, 2], [3, 4]]).shape == (2, 2)
    assert nd.array([nd.array([1, 2]), nd.array([3, 4])]).asnumpy().tolist() == [[1, 2], [3, 4]]
    assert nd.array(np.arange(6).reshape(2, 3).T).asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert nd.array(np.arange(3, dtype=">f4")).asnumpy().tolist() == [0, 1, 2]
    for wrong in ("text", object(), [[1, 2], [3]], [None, "a"], {"a": 1}):
        with pytest.raises(TypeError):
            nd.array(wrong)
    with pytest.raises(ValueError):
        nd.array(np.zeros((1,) * 11))
    source = np.ones(3, "float32")
    array = nd.array(source)
    source[:] = 7
    assert array.asnumpy().tolist() == [1, 1, 1]


def test_bfloat16_rounding_matches_torch():
    values = np.array([1.0, 1.00390625, -3.14159, 1e38, np.inf, np.nan, 65280.0], "float32")
    array = nd.array(values, dtype="bfloat16")
    assert array.dtype is mx.bfloat16 and array.dtype.__name__ == "bfloat16"
    torch = pytest.importorskip("torch")
    expected = torch.tensor(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(array.asnumpy(), expected)
    np.testing.assert_array_equal(np.asarray(array), expected)
    assert nd.array([1, 2], dtype=mx.bfloat16).astype("float32").asnumpy().tolist() == [1, 2]
    with pytest.raises(BufferError):
        memoryview(array)


def test_split_with_squeeze_axis_removes_the_axis():
    for parts in (
        nd.ones((3,)).split(3, axis=0, squeeze_axis=True),
        nd.split_v2(nd.ones((3,)), 3, squeeze_axis=True),
        nd.ones((3,)).split_v2((1, 2), squeeze_axis=True),
    ):
        assert [part.shape for part in parts] == [()] * 3
    x = nd.array([1, 2, 3])
    x.attach_grad()
    with mx.autograd.record():
        first, _, third = x.split(3, axis=0, squeeze_axis=True)
        (first * third).backward()
    assert x.grad.asnumpy().tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    "shape, k, expected",
    [((3, 3), 5, (0,)), ((3, 3), -3, (0,)), ((3, 4, 5), -3, (5, 0)), ((2, 3, 4), 9, (4, 0))]
    + [((1, 2, 3, 4), sign * (2**63 - 1), (3, 4, 0)) for sign in (-1, 1)],
)
def test_diag_outside_the_matrix_is_empty(shape, k, expected):
    x = nd.ones(shape)
    x.attach_grad()
    with mx.autograd.record():
        y = nd.diag(x, k=k)
    y.backward()
    assert y.shape == expected and not x.grad.asnumpy().any()


def test_rrelu_returns_output_and_mask():
    x = nd.array([[-1.0, 1.0]])
    output, mask = nd.LeakyReLU(x, act_type="rrelu")
    np.testing.assert_allclose(output.asnumpy(), [[-0.2295, 1]], rtol=1e-6)
    np.testing.assert_allclose(mask.asnumpy(), [[0.2295, 1]], rtol=1e-6)
    assert isinstance(nd.LeakyReLU(x, act_type="elu"), nd.NDArray)
    assert mx.sym.LeakyReLU(mx.sym.var("a"), act_type="rrelu", name="r").list_outputs() == [
        "r_output",
        "r_mask",
    ]


@pytest.mark.parametrize("function, at_minus_one", [(nd.gammaln, np.inf), (nd.gamma, np.nan)])
def test_gamma_function_gradients_at_poles_are_infinite_or_nan(function, at_minus_one):
    x = nd.array([0, -1, 0.5])
    x.attach_grad()
    with mx.autograd.record():
        y = function(x)
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy()[:2], [np.inf, at_minus_one])
    assert np.isfinite(x.grad.asnumpy()[2])


def test_tolist_format_and_iteration_match_numpy_values():
    x = nd.array([[1, 2], [3, 4]], dtype="int32")
    assert x.tolist() == [[1, 2], [3, 4]] and nd.array(2.5).tolist() == 2.5
    assert f"{nd.array([1.234]):.2f} {nd.array(7, dtype='int32'):03d} {x}" == f"1.23 007 {x!r}"
    with pytest.raises(ValueError):
        f"{x:.2f}"
    assert [row.tolist() for row in iter(x)] == [[1, 2], [3, 4]] and list(nd.zeros((0, 3))) == []
    with pytest.raises(TypeError):
        iter(nd.array(1.0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_clipping_functions_keep_nan(dtype):
    x = nd.array([np.nan, np.inf, -np.inf, -0.0], dtype=dtype)
    for result, expected in (
        (nd.hard_sigmoid(x), [np.nan, 1, 0, 0.5]),
        (nd.clip(x, -1, 2), [np.nan, 2, -1, 0]),
        (nd.relu(x), [np.nan, np.inf, 0, 0]),
    ):
        np.testing.assert_array_equal(result.asnumpy(), np.array(expected, dtype))


def test_array_properties_are_correct_and_read_only():
    x = nd.ones((2, 3), dtype="float16")
    assert (x.shape, x.size, x.ndim, x.dtype, x.stype, x.context, x.ctx) == (
        (2, 3),
        6,
        2,
        np.float16,
        "default",
        mx.cpu(0),
        mx.cpu(0),
    )
    assert x.T.shape == (3, 2) and x.grad is None and x.writable
    with pytest.raises(AttributeError):
        x.shape = (3, 2)
    with pytest.raises(TypeError):
        nd.NDArray()


def test_reshape_codes_match_mxnet():
    x = nd.arange(24).reshape(2, 3, 4)
    for codes, shape in [
        ((4, 0, 2), (4, 3, 2)),
        ((-1,), (24,)),
        ((2, 0, 0), (2, 3, 4)),
        ((6, 1, -1), (6, 1, 4)),
        ((-2,), (2, 3, 4)),
        ((2, -2), (2, 3, 4)),
        ((-2, 1, 1), (2, 3, 4, 1, 1)),
        ((-3, 4), (6, 4)),
        ((-3, -2), (6, 4)),
        ((-4, 1, 2, -2), (1, 2, 3, 4)),
        ((2, -4, -1, 3, -2), (2, 1, 3, 4)),
    ]:
        assert x.reshape(codes).shape == shape
        assert x.reshape(*codes).shape == shape
        assert x.reshape(shape=codes).shape == shape
    assert nd.ones((10, 5, 4)).reshape((-1, 0), reverse=True).shape == (50, 4)
    assert nd.array([3.0]).reshape(()).shape == ()
    for wrong in ((5, 5), (-1, -1), (7, -1), (2, 3), ()):
        with pytest.raises(mx.MXNetError):
            x.reshape(wrong)
    with pytest.raises(TypeError):
        x.reshape((2, 12), order="F")
    with pytest.raises(TypeError):
        x.reshape("a" and object())


def test_copies_keep_values_and_honor_target_device():
    x = nd.array([1, 2, 3])
    other = x.as_in_context(mx.cpu(1))
    assert x.as_in_context(mx.cpu(0)) is x and x.as_in_ctx(mx.cpu()) is x
    assert other.context == mx.cpu(1) and other.asnumpy().tolist() == [1, 2, 3]
    same = x.copy()
    same[:] = 0
    assert x.asnumpy().tolist() == [1, 2, 3]
    target = nd.zeros(3, ctx=mx.cpu(1), dtype="float64")
    assert (
        x.copyto(target) is target
        and target.asnumpy().tolist() == [1, 2, 3]
        and target.dtype == np.float64
    )
    assert x.copyto(mx.cpu(2)).context == mx.cpu(2)
    with pytest.warns(RuntimeWarning):
        assert x.copyto(x) is False
    with pytest.raises(mx.MXNetError):
        x.copyto(nd.zeros(4))
    for wrong in (3, None, "cpu"[:0] + "nothing"):
        with pytest.raises((TypeError, ValueError)):
            x.copyto(wrong)
    assert (
        x.astype("int32").dtype == np.int32
        and x.astype("float32", copy=False) is x
        and x.astype("float32") is not x
    )
    assert copy.copy(x).asnumpy().tolist() == [1, 2, 3] and copy.deepcopy([x])[0] is not x


def test_op_on_different_devices_names_both_in_error():
    with pytest.raises(mx.MXNetError, match="as_in_context") as caught:
        nd.ones(2) + nd.ones(2, ctx=mx.cpu(1))
    assert "cpu(0)" in str(caught.value) and "cpu(1)" in str(caught.value)


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_pickle_keeps_dtype_context_and_values(dtype):
    x = nd.array([[0, 1], [1, 0]], dtype=dtype, ctx=mx.cpu(1))
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype == x.dtype and again.context == mx.cpu(1) and again.shape == x.shape
    np.testing.assert_array_equal(again.asnumpy(), x.asnumpy())
    assert pickle.loads(pickle.dumps(nd.ones(()))).shape == ()


def test_repr_shows_values_shape_and_context():
    assert repr(nd.ones((2, 3))) == "\n[[1. 1. 1.]\n [1. 1. 1.]]\n<NDArray 2x3 @cpu(0)>"
    assert repr(nd.array([1], dtype="int32", ctx=mx.cpu(1))) == "\n[1]\n<NDArray 1 @cpu(1)>"
    assert str(nd.zeros((0, 2))).endswith("<NDArray 0x2 @cpu(0)>")


def test_numpy_conversion_and_buffer_protocol():
    x = nd.arange(6).reshape((2, 3))
    np.testing.assert_array_equal(np.array(x), x.asnumpy())
    np.testing.assert_array_equal(np.sum(np.asarray(x)), 15)
    assert np.asarray(x, dtype="float64").dtype == np.float64
    assert np.array([nd.ones(2), nd.zeros(2)]).shape == (2, 2)
    view = memoryview(x)
    assert (
        view.format == "f"
        and view.shape == (2, 3)
        and view.readonly
        and view.tolist() == [[0, 1, 2], [3, 4, 5]]
    )
    del x
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises((BufferError, TypeError)):
        view[0, 0] = 1
    assert isinstance(np.ones(3, "float32") + nd.ones(3), nd.NDArray)
    assert isinstance(np.float64(2) * nd.ones(3), nd.NDArray)
    assert bytes(nd.array([1, 2], dtype="uint8")) == b"\x01\x02"


def test_array_interface_exports_read_only_views():
    class Foreign:
        def __init__(self, array):
            self.__array_interface__ = array.__array_interface__

    for dtype in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"):
        x = nd.array([[0, 1, 1], [1, 0, 1]], dtype=dtype)
        seen = np.asarray(Foreign(x[:, 1:] if dtype == "int8" else x))
        assert seen.dtype == np.dtype(dtype) and not seen.flags.writeable
        assert seen.tolist() == x.asnumpy()[:, 1 if dtype == "int8" else 0 :].tolist()
    assert not hasattr(nd.array([1], dtype="bfloat16"), "__array_interface__")
    assert np.asarray(nd.array([1], dtype="bfloat16")).dtype == np.float32


def test_pil_reads_uint8_arrays():
    image = pytest.importorskip("PIL.Image")
    x = nd.array(np.arange(24).reshape(2, 4, 3), dtype="uint8")
    assert image.fromarray(x).size == (4, 2) and image.fromarray(x).getpixel((1, 1)) == (15, 16, 17)


def test_ml_dtypes_bfloat16_is_accepted():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([1.5, 2.25, -3], bfloat16)
    x = nd.array(values, dtype=bfloat16)
    assert x.dtype is mx.bfloat16 and x.asnumpy().tolist() == values.tolist()
    assert nd.from_numpy(values, zero_copy=False).dtype is mx.bfloat16
    assert x.asnumpy().dtype == np.float32 and (np.asarray(x, dtype=bfloat16) == values).all()


def test_from_numpy_shares_memory_and_locks_source():
    source = np.arange(6, dtype="float64").reshape(2, 3)
    x = nd.from_numpy(source)
    assert x.dtype == np.float64 and not source.flags.writeable
    x[0] = 7
    assert source[0].tolist() == [7, 7, 7]
    assert nd.from_numpy(np.arange(3), zero_copy=False).dtype == np.int64
    with pytest.raises(ValueError):
        nd.from_numpy(np.arange(6).reshape(2, 3).T)
    again = nd.from_numpy(source)
    again[1] = 8
    assert x.asnumpy().tolist() == [[7, 7, 7], [8, 8, 8]] and not source.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        nd.from_numpy(np.frombuffer(b"abcd", dtype="uint8"))
    rows = nd.from_numpy(source[1:])  # a view of memory that is already shared
    rows[0, 0] = 9
    assert x[1].asnumpy().tolist() == [9, 8, 8] and not source.flags.writeable
    view = source[:1]
    source.flags.writeable = True
    assert (
        nd.from_numpy(view).shape == (1, 3) and source.flags.writeable and not view.flags.writeable
    )


@pytest.mark.parametrize("dtype", ["uint16", "complex64", "float32"])
def test_failed_from_numpy_leaves_source_writable(dtype):
    source = np.ones((4, 4), dtype)
    for refused in (source.T[1:], source) if dtype != "float32" else (source.T[1:],):
        with pytest.raises(ValueError):
            nd.from_numpy(refused)
        assert refused.flags.writeable and source.flags.writeable
    with pytest.raises(TypeError, match="got list"):
        nd.from_numpy([1, 2])


def test_cast_storage_converts_from_default_storage():
    x = nd.arange(4)
    assert x.stype == "default" and nd.cast_storage(x, stype="default").asnumpy().tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert nd.cast_storage(x, "row_sparse").stype == "row_sparse"
    with pytest.raises(ValueError, match="dense"):
        nd.cast_storage(x, "dense")


def test_integer_arange_matches_numpy():
    assert (
        nd.arange(1.3, 6, 1.3, dtype="int32").asnumpy().tolist()
        == np.arange(1.3, 6, 1.3, dtype="int32").tolist()
        == [1, 2, 3, 4]
    )
    assert nd.arange(-2.5, 2, 1.5, dtype="int64").asnumpy().tolist() == [-2, -1, 0]


def test_gradient_of_indexed_integer_array_is_integer():
    x = nd.ones((3, 4), dtype="int32")
    x.attach_grad()
    with mx.autograd.record():
        y = x[[0, 0, 2], [1, 1, 3]]
    y.backward()
    assert x.grad.dtype == np.int32 and x.grad.asnumpy().tolist() == [
        [0, 2, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
    ]


def test_moveaxis_concatenate_split_and_histogram_match_numpy():
    x = nd.arange(24).reshape((2, 3, 4))
    assert nd.moveaxis(x, 0, 2).shape == (3, 4, 2) and nd.moveaxis(x, [0, 1], [-1, -2]).shape == (
        4,
        3,
        2,
    )
    np.testing.assert_array_equal(nd.moveaxis(x, 2, 0).asnumpy(), np.moveaxis(x.asnumpy(), 2, 0))
    with pytest.raises(ValueError):
        nd.moveaxis(x, 5, 0)
    assert (
        nd.concatenate([x, x], axis=1).shape == (2, 6, 4)
        and nd.concatenate([x], always_copy=False) is x
    )
    assert [piece.shape for piece in nd.split_v2(x, 3, axis=1)] == [(2, 1, 4)] * 3
    assert [piece.shape for piece in nd.split_v2(x, (1, 3), axis=2)] == [
        (2, 3, 1),
        (2, 3, 2),
        (2, 3, 1),
    ]
    with pytest.raises(ValueError):
        nd.split_v2(x, 5, axis=1)
    ranged = nd.histogram(nd.array([0, 1, 1, 3]), bins=3, range=(0, 3))
    # as in MXNet
    assert (
        isinstance(ranged, list) and ranged[0].dtype == np.int64 and ranged[1].dtype == np.float32
    )
    counts, edges = nd.histogram(nd.array([0, 1, 1, 3]), bins=3)
    assert counts.asnumpy().tolist() == [1, 2, 1] and edges.shape == (4,)
    out = nd.zeros((2, 3))
    assert nd.onehot_encode(nd.array([2, 0]), out).asnumpy().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert nd.onehot_encode(nd.array([0, 0]), nd.zeros((2, 0))).shape == (2, 0)
    for shape in ((2,), (), (2, 3, 1)):
        with pytest.raises(mx.MXNetError, match=r"onehot_encode: out must .* \(n, depth\), got"):
            nd.onehot_encode(nd.array([2, 0]), nd.zeros(shape))
    assert x.transpose(1, 0, 2).shape == x.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert x.flatten().shape == (2, 12) and x.expand_dims(0).squeeze().shape == (2, 3, 4)
    nd.waitall()


def test_arrays_are_hashable_and_weakly_referenceable():
    x, y = nd.ones(2), nd.ones(2)
    assert len({x: 1, y: 2}) == 2 and {x: 1}[x] == 1
    died = []
    reference = weakref.ref(x, died.append)
    assert reference() is x
    del x
    gc.collect()
    assert reference() is None and died


def test_array_operations_do_not_leak_memory():
    x, y = nd.ones((64, 64)), nd.ones((64, 64))
    mapping = nd.array([0, 1])

    def work():
        for _ in range(50):
            z = (x + y) * 2.0
            z[1:3] = 5
            z[:, 1] = z[:, 2]
            z[[0, 1]] = 3
            z[mapping]
            z.reshape((-1,)).sum()
            nd.concat(x, y, dim=1)
            nd.split(x, num_outputs=2)
            z.astype("float16").asnumpy()
            pickle.loads(pickle.dumps(mapping))
            memoryview(mapping)
            np.from_dlpack(mapping)
            for wrong in (
                lambda: x + nd.ones((3, 3)),
                lambda: x[99],
                lambda: x.reshape((7, 7)),
                lambda: nd.sum(x, nothing=1),
                lambda: nd.array("a"),
                lambda: nd.sum(),
            ):
                with pytest.raises((mx.MXNetError, TypeError)):
                    wrong()
        nd.waitall()
        gc.collect()

    work()
    work()
    objects = [x, mapping, nd.NDArray, mx.cpu(0), None, np.float32]
    before = (
        mx.context.memory_stats(mx.cpu(0))["in_use"],
        [sys.getrefcount(item) for item in objects],
    )
    work()
    after = (
        mx.context.memory_stats(mx.cpu(0))["in_use"],
        [sys.getrefcount(item) for item in objects],
    )
    assert after[0] == before[0]
    assert all(abs(a - b) < 20 for a, b in zip(after[1], before[1])), (before, after)


def test_every_error_class_is_an_mxnet_error():
    for kind in (
        mx.base.MXNetValueError,
        mx.base.MXNetTypeError,
        mx.base.MXNetIndexError,
        mx.base.NotSupportedError,
        mx.base.DeviceMemoryError,
        mx.base.MXNetIOError,
    ):
        assert issubclass(kind, mx.MXNetError) and issubclass(kind, RuntimeError)
    for shape in ((2**40, 2**40), (-1,), (1,) * 11):
        with pytest.raises(mx.MXNetError):
            nd.zeros(shape)
        with pytest.raises(mx.MXNetError):
            nd.empty(shape)


def test_every_advertised_name_exists():
    for name in nd.__all__:
        assert hasattr(nd, name), name
    for name in (
        "sum",
        "exp",
        "slice_axis",
        "softmax",
        "norm",
        "take",
        "tile",
        "clip",
        "broadcast_to",
    ):
        assert callable(getattr(nd.ones(1), name))


def test_traced_arrays_have_metadata_but_no_values():
    gluon = mx.gluon

    class Reads(gluon.HybridBlock):
        def __init__(self, read):
            super().__init__()
            self.read = read

        def hybrid_forward(self, F, x):
            y = x * 2
            assert (
                y.shape == (2, 2)
                and y.dtype == np.float32
                and y.context == mx.cpu(0)
                and "traced" in repr(y)
            )
            self.read(y)
            return y

    reads = [
        lambda y: y.asnumpy(),
        lambda y: y.asscalar(),
        lambda y: float(y[0, 0]),
        lambda y: bool(y[0, 0]),
        lambda y: np.asarray(y),
        lambda y: y.wait_to_read(),
        lambda y: y.__setitem__(0, 1),
        lambda y: memoryview(y),
        lambda y: y.__dlpack__(),
        lambda y: y.item(),
        lambda y: y.attach_grad(),
        lambda y: pickle.dumps(y),
    ]
    for read in reads:
        net = Reads(read)
        net.hybridize()
        with pytest.raises(mx.MXNetError, match="hybridize") as caught:
            net(nd.ones((2, 2)))
        assert "test_ndarray.py" in str(caught.value)
    net = Reads(lambda y: None)
    net.hybridize()
    assert net(nd.ones((2, 2))).asnumpy().tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x[1],
        lambda x: x[:, 1:3],
        lambda x: x[::-1],
        lambda x: x[[0, 2]],
        lambda x: x[:, [0, 1]],
        lambda x: x.reshape((4, 3)),
        lambda x: x.T,
        lambda x: x[..., None],
        lambda x: x + np.ones((3, 4)),
        lambda x: 2 - x,
        lambda x: x.as_in_context(mx.cpu(1)) * 2,
        lambda x: x.astype("float16"),
        lambda x: x.copy(),
        lambda x: x.detach(),
        lambda x: x[0, 1],
        lambda x: x == x,
        lambda x: x[x[0, :2].astype("int32")],
        lambda x: x * x.shape[0],
    ],
)
def test_traced_array_methods_match_eager(step):
    class Step(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return step(x)

    x = nd.arange(12).reshape((3, 4))
    net = Step()
    net.hybridize()
    result, expected = net(x), step(x)
    assert (
        result.dtype == expected.dtype
        and result.context == expected.context
        and result.shape == expected.shape
    )
    np.testing.assert_array_equal(result.asnumpy(), expected.asnumpy())


def test_reshaping_ops_copy_unless_inplace():
    x = nd.arange(6).reshape((1, 2, 3))
    copies = [
        x.flatten(),
        x.expand_dims(0),
        x.squeeze(),
        nd.reshape(x, (6,)),
        nd.identity(x),
        nd.Flatten(x),
    ]
    shared = [
        x.flatten(inplace=True),
        x.expand_dims(-1, inplace=True),
        x.squeeze(inplace=True),
        x.squeeze(0, inplace=True),
        x.reshape((6,)),
        x[0],
    ]
    before = [copy.asnumpy() for copy in copies]
    x[:] = -1
    for copy_, old in zip(copies, before):
        np.testing.assert_array_equal(copy_.asnumpy(), old)
    for view in shared:
        assert (view.asnumpy() == -1).all()
    with pytest.raises(ValueError):
        x.squeeze(1, inplace=True)
    with pytest.raises(ValueError):
        x.expand_dims(7, inplace=True)


class PickledByMXNet:
    """Pickles as MXNet pickles an array: a constructor call and an array file record."""

    def __init__(self, record):
        self.record = record

    def __reduce__(self):
        return nd.NDArray, (None,), {"handle": self.record}


def test_mxnet_pickle_records_are_loaded():
    x = nd.array([[1, 2, 3], [4, 5, 6]], dtype="int8")
    record = bytearray(nd.save_tobuffer([x])[24:-8])
    found = pickle.loads(pickle.dumps(PickledByMXNet(record)))
    np.testing.assert_array_equal(found.asnumpy(), x.asnumpy())
    assert type(found) is nd.NDArray and found.dtype == np.int8
    found += 1
    np.testing.assert_array_equal(found.asnumpy(), x.asnumpy() + 1)
    for wrong in (None, "text", b"", record[:-1], record + b"0", b"\xff" * len(record)):
        array = nd.ones((2,))
        with pytest.raises(mx.MXNetError):
            array.__setstate__({"handle": wrong})
        np.testing.assert_array_equal(array.asnumpy(), np.ones(2))
    sparse = nd.save_tobuffer([x.tostype("csr")])[24:-8]
    with pytest.raises(mx.MXNetError, match="hold a dense array"):
        nd.ones(1).__setstate__({"handle": sparse})
    with pytest.raises(mx.MXNetError, match="'handle'"):
        nd.ones(1).__setstate__([])


def test_sync_copyfrom_writes_values_in_place():
    x = nd.zeros((2, 2), dtype="int32")
    before = x
    x._sync_copyfrom([[1, 2.9], [3, 4]])
    np.testing.assert_array_equal(before.asnumpy(), np.array([[1, 2], [3, 4]]))
    half = nd.zeros((), dtype="bfloat16")
    half._sync_copyfrom(np.float64(1.5))
    assert half.asscalar() == 1.5
    with pytest.raises(ValueError, match=r"shape \(4,\) cannot be copied .* shape \(2, 2\)"):
        x._sync_copyfrom(np.arange(4))
    with pytest.raises(TypeError, match="cannot be copied"):
        x._sync_copyfrom("text")
    np.testing.assert_array_equal(x.asnumpy(), np.array([[1, 2], [3, 4]]))

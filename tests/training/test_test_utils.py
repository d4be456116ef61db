"""`mx.test_utils`: comparison, random arrays, numerical gradients, checks, and local files."""

import gzip
import os
import zipfile

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import test_utils
from support.calls import raises


def test_comparison_functions_detect_differences():
    a = mx.nd.array([1.0, 2.0, np.nan])
    assert test_utils.same(mx.nd.array([1, 2]), [1, 2]) and not test_utils.same(a, a)
    assert test_utils.almost_equal(a, a, equal_nan=True) and not test_utils.almost_equal(a, a)
    assert test_utils.almost_equal(mx.nd.zeros((2, 1)), mx.nd.zeros((2,)))
    with pytest.raises(AssertionError, match="shapes differ"):
        test_utils.almost_equal(mx.nd.zeros((2, 1)), mx.nd.zeros((2,)), use_broadcast=False)
    test_utils.assert_almost_equal(np.float16([1.0]), [1.005])
    with pytest.raises(AssertionError, match=r"worst at \(1,\)"):
        test_utils.assert_almost_equal(mx.nd.array([1.0, 2.0]), [1.0, 2.1])
    with pytest.raises(AssertionError, match="shapes"):
        test_utils.assert_almost_equal(np.zeros(2), np.zeros(3))
    test_utils.assert_exception(int, ValueError, "x")
    with pytest.raises(AssertionError):
        test_utils.assert_exception(int, ValueError, "1")


def test_random_arrays_have_requested_shapes_and_storage():
    assert all(1 <= d <= 4 for d in test_utils.rand_shape_nd(6, 4))
    assert len(test_utils.rand_shape_2d()) == 2
    assert len(test_utils.rand_shape_3d()) == 3
    array = test_utils.rand_ndarray((3, 4), ctx=mx.cpu(1))
    assert array.shape == (3, 4) and array.context == mx.cpu(1)
    for stype in ("csr", "row_sparse"):
        array = test_utils.rand_ndarray((40, 30), stype, density=0.3, ctx=mx.cpu(1))
        assert array.stype == stype and array.shape == (40, 30) and array.context == mx.cpu(1)
        assert 0 < np.count_nonzero(array.asnumpy()) < 1200


def test_default_context_follows_environment_and_setter(monkeypatch):
    assert test_utils.default_context() == mx.cpu(0)
    monkeypatch.setenv("MXNET_TEST_DEFAULT_CTX", "cpu(2)")
    assert test_utils.default_context() == mx.cpu(2)
    for device in (mx.cpu(3), mx.cpu(1)):
        test_utils.set_default_context(device)
        assert test_utils.default_context() == mx.nd.ones(1).context == device
    test_utils.set_default_context(None)
    assert mx.nd.ones(1).context == mx.cpu(0) and test_utils.default_context() == mx.cpu(2)


def test_check_numeric_gradient_detects_wrong_gradients():
    test_utils.check_numeric_gradient(
        lambda a, b: a * b + a * a, [np.array([[1.0, -2.0]]), np.array([[0.5, 3.0]])]
    )

    def wrong(a):
        return a * mx.nd.BlockGrad(a)

    with pytest.raises(AssertionError, match="gradient of input 0"):
        test_utils.check_numeric_gradient(wrong, [np.array([1.0, 2.0])])


def test_tolerances_depend_on_dtype():
    half, single = np.float16([1.0]), mx.nd.array([1.0])
    assert test_utils.get_tols(half, single, None, None) == (1e-2, 1e-1)
    assert test_utils.get_tols(single, 1.0, {np.dtype("float32"): 0.5}, 0.25) == (0.5, 0.25)
    assert test_utils.effective_dtype(mx.nd.ones(1, dtype=mx.bfloat16)) is mx.bfloat16
    test_utils.assert_almost_equal(mx.nd.ones(1, dtype=mx.bfloat16), [1.01])
    with pytest.raises(AssertionError, match="1 of 2 values differ"):
        test_utils.assert_allclose(single, [1.0, 1.001])
    test_utils.assert_almost_equal_with_err([1.0, 2, 3, 4], [1.0, 2, 3, 5], etol=0.25)
    with pytest.raises(AssertionError, match="maximum error"):
        test_utils.assert_almost_equal_with_err([1.0, 2, 3, 4], [1.0, 2, 4, 5], etol=0.25)
    test_utils.assert_almost_equal_ignore_nan([1, np.nan, 3.0], [1, 2, np.nan])
    x = mx.nd.ones((2, 3))
    assert test_utils.same_array(x, x) and not test_utils.same_array(x, x.copy())


def test_array_helpers_return_expected_values():
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(test_utils.assign_each(a, lambda v: v * v), a * a)
    assert np.array_equal(test_utils.assign_each2(a, a, lambda v, w: v - w), a - a)
    assert test_utils.np_reduce(a, (0, 1), True, np.sum).tolist() == [[15]]
    assert test_utils.np_reduce(a, 1, False, np.max).tolist() == [2, 5]
    assert sorted(test_utils.random_sample([1, 2, 3], 3)) == [1, 2, 3]
    (uniform,) = test_utils.random_uniform_arrays((50,), low=2, high=3)
    assert uniform.min() >= 2 and uniform.max() < 3 and uniform.dtype == np.float32


def test_symbolic_checks_detect_wrong_results():
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    x, y = np.random.rand(2, 3), np.random.rand(2, 3)
    product = a * b
    test_utils.check_symbolic_forward(product, [x, y], [x * y])
    with pytest.raises(AssertionError, match="values differ"):
        test_utils.check_symbolic_forward(product, {"a": x, "b": y}, [x + y])
    with pytest.raises(ValueError, match="location has"):
        test_utils.check_symbolic_forward(product, {"a": x}, [x])
    for request in ("write", "add", {"a": "null", "b": "add"}):
        expected = {"b": x} if isinstance(request, dict) else [y, x]
        test_utils.check_symbolic_backward(
            product, [x, y], [np.ones((2, 3))], expected, grad_req=request
        )
    with pytest.raises(AssertionError, match="gradient of b"):
        test_utils.check_symbolic_backward(product, [x, y], [np.ones((2, 3))], {"b": y})
    test_utils.check_numeric_gradient(product, [x, y])
    test_utils.check_numeric_gradient(product, {"a": x, "b": y}, grad_nodes={"b": "add"})
    with pytest.raises(AssertionError, match="gradient of a"):
        test_utils.check_numeric_gradient(mx.sym.BlockGrad(a) * a, [x])
    norm = mx.sym.BatchNorm(a, name="norm", fix_gamma=False)
    test_utils.check_numeric_gradient(
        norm,
        [np.random.rand(4, 2), np.ones(2), np.zeros(2)],
        [np.zeros(2), np.ones(2)],
        rtol=0.05,
        atol=0.05,
    )
    assert test_utils.same_symbol_structure(product, b * a)
    assert not test_utils.same_symbol_structure(product, a + b)


def test_check_consistency_detects_differing_contexts():
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    settings = [
        {
            "ctx": mx.cpu(i),
            "data": (2, 3),
            "type_dict": dict.fromkeys(layer.list_arguments(), dtype),
        }
        for i, dtype in enumerate(("float32", "float64", "float16"))
    ]
    right = test_utils.check_consistency(layer, settings)
    assert right["fc_output"].dtype == np.float64 and set(right) > {"data", "fc_weight"}
    other = mx.sym.FullyConnected(mx.sym.var("data") * 1.5, num_hidden=4, name="fc")
    with pytest.raises(AssertionError, match="fc_output of context 0 differs from context 1"):
        test_utils.check_consistency([layer, other, layer], settings)


def test_compare_optimizer_detects_different_optimizers():
    test_utils.compare_optimizer(mx.opt.Adam(), mx.opt.Adam(), (3, 4), "float32")
    test_utils.compare_optimizer(
        mx.opt.SGD(momentum=0.9), mx.opt.SGD(momentum=0.9), [(3,), (2, 2)], "float32", ntensors=2
    )
    with pytest.raises(AssertionError):
        test_utils.compare_optimizer(mx.opt.SGD(), mx.opt.SGD(wd=0.5), (9,), "float32", rtol=1e-6)
    for stypes in (("row_sparse", "row_sparse"), ("default", "row_sparse")):
        np.random.seed(1)
        test_utils.compare_optimizer(mx.opt.SGD(), mx.opt.SGD(), (9, 2), "float32", *stypes)
        with pytest.raises(AssertionError):
            test_utils.compare_optimizer(
                mx.opt.SGD(), mx.opt.SGD(wd=0.5), (9, 2), "float32", *stypes, rtol=1e-6
            )


def test_verify_generator_detects_wrong_distributions():
    mx.random.seed(3)
    stats = pytest.importorskip("scipy.stats")
    buckets, probs = test_utils.gen_buckets_probs_with_ppf(stats.norm.ppf, 5)

    def normal(count):
        return mx.nd.random.normal(shape=count).asnumpy()

    test_utils.verify_generator(normal, buckets, probs, nsamples=20000)
    test_utils.verify_generator(
        lambda count: mx.nd.random.randint(0, 4, shape=count), [0, 1, 2, 3], [0.25] * 4, 20000
    )
    with pytest.raises(AssertionError, match="chi-square"):
        test_utils.verify_generator(lambda count: normal(count) * 2, buckets, probs, 20000)


def test_environment_and_retry_restore_state(monkeypatch, capfd):
    monkeypatch.setenv("MPGLUON_HERE", "1")
    with test_utils.environment({"MPGLUON_HERE": None, "MPGLUON_NEW": "2"}):
        assert "MPGLUON_HERE" not in os.environ and os.environ["MPGLUON_NEW"] == "2"
        with test_utils.environment("MPGLUON_NEW", "3"):
            assert os.environ["MPGLUON_NEW"] == "3"
    assert os.environ["MPGLUON_HERE"] == "1" and "MPGLUON_NEW" not in os.environ
    with test_utils.discard_stderr():
        os.write(2, b"hidden")
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"
    runs = []

    @test_utils.retry(3)
    def third_time():
        runs.append(1)
        assert len(runs) == 3

    third_time()


def idx(array):
    header = b"\0\0\x08" + bytes([array.ndim])
    return header + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def test_local_data_readers_name_missing_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raises(FileNotFoundError, "train-images-idx3-ubyte.gz", test_utils.get_mnist)
    raises(FileNotFoundError, "mnist.zip", lambda: test_utils.get_mnist_iterator(2, (1, 28, 28)))
    with pytest.raises(FileNotFoundError, match="resnet-18-symbol.json"):
        test_utils.download_model("resnet-18")
    images = np.random.randint(0, 256, (5, 28, 28))
    files = {}
    for part in ("train", "t10k"):
        files[f"{part}-images-idx3-ubyte"] = idx(images)
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(5))
    os.mkdir("data")
    with zipfile.ZipFile("data/mnist.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
            with gzip.open(f"{name}.gz", "wb") as file:
                file.write(content)
    mnist = test_utils.get_mnist()
    assert mnist["train_data"].shape == (5, 1, 28, 28)
    assert mnist["test_label"].tolist() == [*range(5)]
    assert np.array_equal(mnist["test_data"], (images[:, None] / 255).astype(np.float32))
    train, test = test_utils.get_mnist_iterator(2, (784,))
    batches = [batch.data[0].asnumpy() for batch in test]
    assert np.allclose(np.concatenate(batches) * 256, images[:4].reshape(4, 784))
    dummy = test_utils.DummyIter(train)
    assert next(dummy) is next(dummy) and dummy.provide_data == train.provide_data
    test_utils.get_zip_data("copy", str(tmp_path / "data" / "mnist.zip"), "mnist.zip")
    assert os.path.exists("copy/t10k-labels-idx1-ubyte")
    with gzip.open("train-images-idx3-ubyte.gz", "wb") as file:
        file.write(files["train-images-idx3-ubyte"][:-1])
    raises(ValueError, "has shape", test_utils.get_mnist)

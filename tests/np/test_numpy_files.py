"""Array files, text files, printing and images: mx.npx, np.genfromtxt, np.set_printoptions."""

import struct

import numpy as onp
import pytest

import mpgluon as mx
from mpgluon import nd

VERSION_2, VERSION_3 = 0xF993FAC9, 0xF993FACA


def array(values, dtype="float32"):
    return nd.array(onp.asarray(values, dtype), dtype=dtype).as_np_ndarray()


def version(path):
    """Returns the version of the first array's record."""
    return struct.unpack("<I", path.read_bytes()[24:28])[0]


ARRAYS = [array(3.5), array(onp.zeros((0, 3))), array([True, False], "bool"), array([[1]], "int8")]


@pytest.mark.parametrize("suffix", ["params", "npz", "safetensors"])
def test_save_and_load_preserve_shapes_and_dtypes(tmp_path, suffix):
    path = tmp_path / f"arrays.{suffix}"
    named = {str(i): x for i, x in enumerate(ARRAYS)}
    mx.npx.save(str(path), named)
    loaded = mx.npx.load(str(path))
    assert [*loaded] == [*named]
    for name, x in named.items():
        y = loaded[name]
        assert type(y) is mx.np.ndarray and y.shape == x.shape and y.dtype == x.dtype
        assert onp.array_equal(x.asnumpy(), y.asnumpy())


def test_lists_and_single_arrays_are_saved_without_names(tmp_path):
    path = tmp_path / "arrays"
    mx.npx.save(str(path), ARRAYS)
    assert [x.shape for x in mx.npx.load(str(path))] == [(), (0, 3), (2,), (1, 1)]
    mx.npx.save(path, ARRAYS[0])
    (x,) = mx.npx.load(path)
    assert x.shape == () and float(x) == 3.5


def test_records_have_version_3_if_an_array_is_of_mx_np(tmp_path):
    """MXNet reads only version 3 in NumPy's semantics, and only version 2 without."""
    path = tmp_path / "arrays"
    mx.npx.save(str(path), [array([1, 2])])
    assert version(path) == VERSION_3
    assert type(nd.load(str(path))[0]) is nd.NDArray
    nd.save(str(path), [array([1, 2]).as_nd_ndarray()])
    assert version(path) == VERSION_2
    assert type(mx.npx.load(str(path))[0]) is mx.np.ndarray
    nd.save(str(path), {"a": array([1, 2])})
    assert version(path) == VERSION_3


def test_savez_names_arrays_as_numpy_does(tmp_path):
    mx.npx.savez(str(tmp_path / "arrays"), array([1, 2]), array(3), scale=array([[4]]))
    loaded = mx.npx.load(str(tmp_path / "arrays.npz"))
    assert {name: x.shape for name, x in loaded.items()} == {
        "arr_0": (2,),
        "arr_1": (),
        "scale": (1, 1),
    }
    assert onp.load(tmp_path / "arrays.npz")["arr_1"] == 3
    with pytest.raises(ValueError, match="'arr_0' is the name of a positional"):
        mx.npx.savez(str(tmp_path / "arrays"), array(1), arr_0=array(2))


def test_save_refuses_other_values(tmp_path):
    path = str(tmp_path / "arrays")
    with pytest.raises(TypeError, match=r"arr must .* an array of mx.nd; use x.as_np_ndarray\(\)"):
        mx.npx.save(path, nd.ones(2))
    with pytest.raises(TypeError, match="item 1 must be an array of mx.np, got float"):
        mx.npx.save(path, [array(1), 2.0])
    with pytest.raises(TypeError, match="'a' must be an array of mx.np, got an array of mx.nd"):
        mx.npx.save(path, {"a": nd.ones(2)})
    nd.save(path, [nd.sparse.csr_matrix(onp.eye(2))])
    with pytest.raises(TypeError, match="storage type csr; use mx.nd.load"):
        mx.npx.load(path)


IMAGE = onp.arange(60, dtype="float32").reshape(4, 5, 3)


def test_image_ops_and_functions_keep_the_kind_of_the_image():
    image = array(IMAGE)
    for name, call in {
        "crop": lambda F, x: F.crop(x, 1, 1, 2, 2),
        "resize": lambda F, x: F.resize(x, size=3),
        "to_tensor": lambda F, x: F.to_tensor(x),
        "flip_left_right": lambda F, x: F.flip_left_right(x),
    }.items():
        result = call(mx.npx.image, image)
        assert type(result) is mx.np.ndarray, name
        expected = call(nd.image, image.as_nd_ndarray())
        assert onp.array_equal(result.asnumpy(), expected.asnumpy())
    for function in (
        lambda x: mx.npx.image.imresize(x, 3, 2),
        lambda x: mx.npx.image.center_crop(x, (2, 2))[0],
        lambda x: mx.image.copyMakeBorder(x, 1, 1, 1, 1),
        lambda x: mx.image.imrotate(x.swapaxes(0, 2), 30),
        lambda x: mx.npx.image.ColorNormalizeAug([1, 2, 3], [2, 2, 2])(x * 1),
        lambda x: mx.npx.image.RandomGrayAug(1)(x),
        lambda x: mx.npx.image.LightingAug(0, onp.ones(3), onp.eye(3))(x),
        lambda x: mx.npx.image.HueJitterAug(0)(x),
        lambda x: mx.npx.image.ContrastJitterAug(0)(x),
        lambda x: mx.npx.image.SaturationJitterAug(0)(x),
        lambda x: mx.npx.image.CastAug()(x),
        lambda x: mx.npx.image.HorizontalFlipAug(1)(x),
    ):
        result = function(image)
        expected = function(image.as_nd_ndarray())
        assert type(result) is mx.np.ndarray and type(expected) is nd.NDArray
        assert onp.array_equal(result.asnumpy(), expected.asnumpy())


def test_image_ops_of_mx_npx_refuse_nd_arrays():
    with pytest.raises(TypeError, match="mx.np"):
        mx.npx.image.to_tensor(nd.array(IMAGE))


@pytest.mark.parametrize("numpy", [False, True])
def test_images_are_decoded_to_the_kind_that_gluon_creates(tmp_path, numpy):
    kind = mx.np.ndarray if numpy else nd.NDArray
    header = b"P6 2 1 255\n"
    (tmp_path / "a.ppm").write_bytes(header + bytes(6))
    with mx.util.np_array(numpy):
        decoded = mx.image.imdecode(header + bytes(range(6)))
        assert type(mx.image.imread(tmp_path / "a.ppm")) is kind
        images = mx.image.ImageIter(
            2, (3, 4, 4), imglist=[[1.0, "a.ppm"], [2.0, "a.ppm"]], path_root=str(tmp_path)
        )
        batch = next(images)
    assert type(decoded) is kind and decoded.asnumpy().ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert type(batch.data[0]) is type(batch.label[0]) is kind
    assert batch.label[0].asnumpy().tolist() == [1, 2]


def test_genfromtxt_reads_an_array_on_a_device(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n3,4.5\n")
    x = mx.np.genfromtxt(str(path), delimiter=",", skip_header=1, ctx=mx.cpu(1))
    assert type(x) is mx.np.ndarray and x.ctx == mx.cpu(1)
    assert x.dtype == "float64" and x.tolist() == [[1, 2], [3, 4.5]]
    assert mx.np.genfromtxt(["1", "2"], dtype="float32").dtype == "float32"
    with pytest.raises(TypeError):
        mx.np.genfromtxt(["1 a"], dtype="U1")


def test_print_options_change_the_text_of_arrays():
    with onp.printoptions():
        mx.np.set_printoptions(precision=2, threshold=4)
        assert repr(mx.np.array([0.12345])) == "array([0.12])"
        assert "..." in repr(mx.np.arange(9))
        mx.np.set_printoptions(suppress=True)
        assert repr(mx.np.array([1e-9])) == "array([0.])"


def test_symbols_have_no_functions_of_text():
    assert not {"genfromtxt", "set_printoptions"} & {*dir(mx.sym.np)}

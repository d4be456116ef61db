"""Functions of mx.np for text files and printing."""

import numpy as onp
import pytest

import mpgluon as mx


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

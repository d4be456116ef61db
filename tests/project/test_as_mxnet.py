"""mpgluon.as_mxnet: imports of mxnet resolve to mpgluon."""

import multiprocessing
import os
import shutil
import zipfile

import numpy as np
import pytest

import mpgluon as mx
from support.paths import ROOT
from support.processes import ended, output_of, ran

PROGRAM = """
import sys
import mxnet as mx
import mxnet.gluon.block as block
import mxnet.ndarray.ndarray
from mxnet import autograd, gluon, nd
from mxnet.gluon.data.vision import transforms
import mpgluon

print(mx.__version__, mx.libinfo.__version__, mx, sys.argv[1:])
print(block is mpgluon.gluon.block, gluon is mpgluon.gluon, mx.nd is mpgluon.nd)
print(mpgluon.gluon.__spec__.name, mpgluon.__version__ != mx.__version__)
net = gluon.nn.Dense(1)
net.initialize(mx.init.One())
net.hybridize()
print(net(nd.ones((1, 2))).asscalar(), mx.AttrScope is mpgluon.AttrScope)
try:
    import mxnet.nothing
except ModuleNotFoundError as error:
    print(error)
"""
EXPECTED = """1.9.1 1.9.1 <module 'mxnet', which is mpgluon> {arguments}
True True True
mpgluon.gluon True
2.0 True
No module named 'mxnet.nothing'"""


def test_program_that_imports_mxnet_runs():
    printed = output_of("import mpgluon\nmpgluon.as_mxnet()\nmpgluon.as_mxnet()\n" + PROGRAM)
    assert printed.strip() == EXPECTED.format(arguments=[])


def test_star_import_of_mxnet_gives_all_names():
    code = """
        import mpgluon
        mpgluon.as_mxnet()
        from mxnet import *
        print(nd is mpgluon.nd, cpu(0), test_utils.__name__, libinfo.__version__)
        import mxnet.optimizer.optimizer
        from mxnet.image.image import ImageIter
        print(mxnet.optimizer.optimizer.SGD is optimizer.SGD, ImageIter is image.ImageIter)
    """
    assert output_of(code).splitlines() == [
        "True cpu(0) mpgluon.test_utils 1.9.1",
        "True True",
    ]
    assert not hasattr(mx.optimizer.optimizer, "no_such_name")


@pytest.mark.slow
def test_runner_runs_scripts_and_modules(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    runner = ("-m", "mpgluon.as_mxnet")
    found = ran(*runner, str(script), "--steps", "3", cwd=tmp_path)
    assert found.stdout.strip() == EXPECTED.format(arguments=["--steps", "3"]), found.stderr
    found = ran(*runner, "-m", "train", cwd=tmp_path)
    assert found.stdout.strip() == EXPECTED.format(arguments=[]), found.stderr
    found = ran(*runner, "absent.py", cwd=tmp_path)
    assert found.returncode == 2 and "no such file: absent.py" in found.stderr


STARTS_OTHERS = """
import multiprocessing
import subprocess
import sys
import numpy
import mxnet as mx

class Numbers(mx.gluon.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return mx.nd.full((2,), index)

def doubled(x):
    return mx.__version__, hasattr(numpy, "product"), (x * 2).asnumpy().tolist()

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    worker = multiprocessing.Process(target=doubled, args=(mx.nd.ones(1),))
    worker.start()
    worker.join(100)
    assert worker.exitcode == 0, worker.exitcode
    with multiprocessing.Pool(1) as pool:
        print(pool.map_async(doubled, [mx.nd.ones(2)]).get(100))
    batches = mx.gluon.data.DataLoader(Numbers(), 2, num_workers=1)
    print([batch.asnumpy()[:, 0].tolist() for batch in batches])
    code = "import mxnet.gluon.nn as nn; print(nn.Dense.__module__)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("names", [[], ["--numpy-names"]])
@pytest.mark.slow
def test_child_processes_can_import_mxnet(tmp_path, method, names):
    (tmp_path / "script.py").write_text(STARTS_OTHERS)
    found = ran("-u", "-m", "mpgluon.as_mxnet", *names, "script.py", method, cwd=tmp_path)
    old = bool(names) or hasattr(np, "product")
    assert found.stdout.splitlines() == [
        f"[('1.9.1', {old}, [2.0, 2.0])]",
        "[[0.0, 1.0], [2.0, 3.0]]",
        "mpgluon.gluon.nn.basic_layers",
    ], found.stderr


def test_names_of_mxnet_submodules_can_be_imported():
    code = """
        import multiprocessing
        import mpgluon
        mpgluon.as_mxnet()
        import mxnet as mx
        from mxnet.gluon.block import DeferredInitializationError, Parameter
        from mxnet.io.io import MNISTIter
        from mxnet.metric import ndarray, string_types
        from mxnet.optimizer.optimizer import sgd_update
        from mxnet.rnn.rnn_cell import FusedRNNCell
        from mxnet import np, npx
        print(ndarray is mx.nd, string_types, Parameter is mx.gluon.Parameter, mx.rnd is mx.random)
        x = [mx.nd.ones(1), mx.sym.var("x"), 1]
        print([isinstance(one, mx.gluon.tensor_types) for one in x])
        print(sgd_update(x[0], x[0], lr=0.5).asscalar(), multiprocessing.pool.Pool.__name__)
        npx.set_np()
        print(mx.util.is_np_array(), np.ndarray is mx.np.ndarray)
    """
    assert output_of(code).splitlines() == [
        "True (<class 'str'>,) True True",
        "[True, True, False]",
        "0.5 Pool",
        "True True",
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.isdir(os.path.join(ROOT, "tools")), reason="the sources are not here"
)
def test_mxnet_wheel_provides_the_import(tmp_path):
    pytest.importorskip("setuptools")
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(os.path.join(ROOT, "tools", "mxnet_wheel"), source)
    made = ended(f"""
        import os
        from setuptools.build_meta import build_wheel
        os.chdir({str(source)!r})
        build_wheel({str(tmp_path)!r})
    """)
    wheel = tmp_path / "mxnet-1.9.1+mpgluon-py3-none-any.whl"
    assert wheel.exists(), made.stderr
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    begin = f"import sys\nsys.path.append({str(site)!r})\n"
    for first in ("", "import mpgluon\nmpgluon.as_mxnet()\n", "import mxnet, mpgluon.as_mxnet\n"):
        found = ended(begin + first + PROGRAM)
        assert found.stdout.strip() == EXPECTED.format(arguments=[]), found.stderr


def test_imported_real_mxnet_is_not_replaced(tmp_path):
    (tmp_path / "mxnet.py").write_text("__version__ = '1.5.0'\n")
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import mxnet, mpgluon
        try:
            mpgluon.as_mxnet()
        except mpgluon.MXNetError as error:
            print(error)
        print(mxnet.__version__)
    """
    text, version = output_of(code).splitlines()
    assert "is already imported, from" in text and str(tmp_path) in text and version == "1.5.0"


@pytest.mark.slow
def test_numpy_names_restores_removed_names():
    code = """
        import numpy as np, mpgluon
        before = {name for name in vars(np)}
        mpgluon.as_mxnet()
        print({name for name in vars(np)} == before)
        mpgluon.as_mxnet(numpy_names=True)
        print(np.float is float, np.product([2, 3]), np.alltrue([1, 0]), np.Inf, np.in1d([1], [1]))
    """
    assert output_of(code).strip() == "True\nTrue 6 False inf [ True]"
    code = """
        import numpy as np, mpgluon
        mpgluon.as_mxnet(numpy_names=True)
        numbers = np.fromstring(b"\\x01\\x02\\x03", dtype=np.int8, count=2)
        numbers += 1
        print(numbers, np.fromstring("1 2", sep=" "), np.fromstring(b"\\0" * 8))
    """
    assert output_of(code).strip() == "[2 3] [1. 2.] [0.]"
    kept = np.bool_  # NumPy's own names are unchanged
    code = "import numpy as np, mpgluon\nmpgluon.as_mxnet(numpy_names=True)\nprint(np.bool_)"
    assert output_of(code).strip() == str(kept)


def test_private_names_that_packages_import_exist():
    from mpgluon.gluon.block import _flatten, _regroup

    x, symbols = mx.nd.ones(1), mx.sym.Group([mx.sym.var("b"), mx.sym.var("c")])
    flat, form = _flatten([x, [None, x], (mx.sym.var("a"), symbols)], "input")
    assert form == [0, [-1, 0], [0, 2]] and len(flat) == 5
    assert _regroup([1, None, 2, 3, 4, 5, 6], form) == ([1, [None, 2], [3, [4, 5]]], [6])
    with pytest.raises(ValueError, match="the input of a HybridBlock must be Symbols or NDArrays"):
        _flatten("text", "input")
    assert mx.gluon.loss._reshape_like(mx.nd, mx.nd.ones((2, 3)), mx.nd.ones((3, 2))).shape == (
        3,
        2,
    )
    assert mx.image.image._get_interp_method(9, (2, 2, 4, 4)) == 2
    cell = mx.gluon.rnn.LSTMCell(2)
    for activation in ("relu", "softrelu", mx.gluon.nn.LeakyReLU(0.5), lambda x: x.relu()):
        found = cell._get_activation(mx.nd, mx.nd.array([-2, 0, 3]), activation, name="a")
        assert found[2].asscalar() >= 3
    assert cell._get_activation(mx.sym, mx.sym.var("x"), "tanh", name="a").name == "a"
    assert mx.gluon.utils._indent("a\nb", 2) == "a\n  b"
    assert mx.gluon.utils._brief_print_list(["a", "b"]) == "'a', 'b'"


def test_connection_wrapper_sends_arrays():
    ends = multiprocessing.Pipe()
    here, there = (mx.gluon.data.dataloader.ConnectionWrapper(end) for end in ends)
    here.send({"x": mx.nd.array([1, 2])})
    assert there.poll(10) and there.recv()["x"].asnumpy().tolist() == [1, 2]
    here.close()
    with pytest.raises(EOFError):
        there.recv()
    with pytest.raises(AttributeError, match="nothing"):
        there.nothing


def test_downloaded_dataset_can_be_subclassed(tmp_path):
    base = mx.gluon.data.dataset._DownloadedDataset

    class Squares(base):
        def _get_data(self):
            self._data, self._label = mx.nd.arange(3), [i * i for i in range(3)]

    data = Squares(str(tmp_path / "new"), None)
    assert len(data) == 3 and data[2][0].asscalar() == 2 and data[2][1] == 4
    assert (tmp_path / "new").is_dir()
    assert Squares(str(tmp_path), lambda x, y: y + 1)[2] == 5
    with pytest.raises(NotImplementedError, match="does not define _get_data"):
        base(str(tmp_path), None)


class Everyother(mx.gluon.data.dataloader._MultiWorkerIter):
    """Sends every second batch; packages override `_push_next` in this way."""

    def _push_next(self):
        next(self._iter, None)
        super()._push_next()


def test_multi_worker_iter_can_be_subclassed():
    from mpgluon.gluon.data import dataloader

    data = mx.gluon.data.ArrayDataset(np.arange(12, dtype=np.float32))
    sampler = mx.gluon.data.BatchSampler(mx.gluon.data.SequentialSampler(12), 2, "keep")
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, dataloader._worker_initializer, [data]) as pool:
        for kind, expected in (
            (dataloader._MultiWorkerIter, [[2 * i, 2 * i + 1] for i in range(6)]),
            (Everyother, [[2, 3], [6, 7], [10, 11]]),
        ):
            batches = kind(pool, dataloader.default_batchify_fn, sampler, prefetch=2)
            assert len(batches) == 6
            assert [batch.asnumpy().tolist() for batch in batches] == expected
    moved = dataloader._as_in_context([mx.nd.ones(1), (mx.nd.ones(1), 3)], mx.cpu(1))
    assert moved[0].context == moved[1][0].context == mx.cpu(1) and moved[1][1] == 3
    assert not hasattr(dataloader, "no_such_name")


def test_cached_graph_has_mxnets_form():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    net.hybridize()
    assert net._cached_graph == ()
    net(mx.nd.ones((1, 3)))
    inputs, symbol = net._cached_graph
    assert [v.name for v in inputs] == ["data"]
    assert symbol.list_arguments() == ["data", *(p.name for p in net.collect_params().values())]
    net._clear_cached_op()
    assert net._cached_graph == ()


def test_c_library_names_raise_with_the_reason():
    from mpgluon.base import _LIB, NDArrayHandle, c_str, check_call

    with pytest.raises(mx.MXNetError, match=r"base\._LIB\.MXNDArrayCreate needs MXNet's C library"):
        _LIB.MXNDArrayCreate(NDArrayHandle())
    with pytest.raises(mx.MXNetError, match=r"base\.check_call needs"):
        check_call(0)
    assert c_str("text").value == b"text"
    assert not hasattr(mx.base, "no_such_name")


MOVED = """
    kvstore.base kvstore.kvstore kvstore_server nd.utils sym.register nd.register
    gluon.contrib.nn.basic_layers gluon.contrib.cnn.conv_layers contrib.onnx.onnx2mx
    contrib.onnx.mx2onnx module.executor_group onnx.mx2onnx executor_manager misc
    numpy.fallback numpy.multiarray nd.numpy nd.numpy_extension
""".split()


def test_mxnet_submodules_are_attributes_before_import():
    code = f"""
        import mpgluon
        mpgluon.as_mxnet()
        import mxnet, operator
        print(*[operator.attrgetter(name)(mxnet).__name__ for name in {MOVED}])
    """
    assert len(output_of(code).split()) == len(MOVED)


def test_mxnet_module_paths_exist_under_mpgluon():
    code = """
        import ctypes
        import mpgluon.contrib.ndarray
        import mpgluon as mx
        from mpgluon.contrib.symbol import MultiBoxPrior
        from mpgluon.contrib.autograd import TrainingStateScope
        from mpgluon.gluon.model_zoo.vision.resnet import resnet_block_versions, resnet_spec
        from mpgluon.io.io import MXDataIter
        from mpgluon.metric import ndarray
        from mpgluon.symbol.symbol import arange, zeros
        print(ndarray is mx.nd, mx.contrib.ndarray is mx.nd.contrib, arange is mx.sym.arange)
        print(isinstance(mx.nd.ones(1), mx.gluon.tensor_types), mx.base.mx_uint is ctypes.c_uint)
        x = mx.sym.var("x")
        print(isinstance(x, mx.gluon.tensor_types), MXDataIter is mx.io.MXDataIter)
        print(issubclass(mx.base.NotSupportedForSparseNDArray, mx.MXNetError), resnet_spec[18][0])
        print(mx.libinfo.find_include_path() == mx.library.get_include())
        with TrainingStateScope(True):
            print(mx.autograd.is_recording(), mx.autograd.is_training())
        print(mx.autograd.is_recording())
    """
    assert output_of(code).split() == [*["True"] * 8, "basic_block", *["True"] * 3, "False"]
    with pytest.raises(AttributeError, match="did you mean 'DataIter'"):
        mx.io.io.MXDataItr

"""C ops added by `mx.library.load`, and libraries that are refused.

Runs them eager, recorded, hybridized, in symbols, on several devices and in pipelines.
"""

import os
import pickle
import shutil
import threading
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import Pipeline
from support.calls import raises
from support.compare import same_bits
from support.devices import cpus_only, on
from support.processes import LIBRARY, compiled, output_of
from support.training import backward_of, variable

pytestmark = cpus_only
STRICT = ["-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module", autouse=True)
def path(folder):
    path = compiled(folder / "libtests.so", "-std=c11", "-pedantic", *STRICT)
    if "tests_mix" not in _core.ops():
        mx.library.load(path, verbose=False)
    return path


def arrays(*shapes, dtype="float32", ctx=None, seed=0):
    random = np.random.default_rng(seed)
    return [nd.array(random.normal(size=shape), dtype=dtype, ctx=ctx or on(0)) for shape in shapes]


# Calls


def test_library_op_handles_outputs_and_every_parameter_kind():
    a, b = arrays((3, 4), (3, 4))
    x, y = a.asnumpy(), b.asnumpy()
    for params, k in [
        ({}, 0.5),
        ({"scale": 2, "mode": "minus"}, -2),
        ({"power": 3, "twice": True}, 8),
        ({"label": "four", "scale": "1"}, 5),
    ]:
        total, product = nd.tests_mix(a, b, **params)
        np.testing.assert_allclose(total.asnumpy(), x + k * y, rtol=1e-5, atol=1e-6)
        same_bits(product.asnumpy(), x * y)
    out = [nd.zeros((3, 4)), nd.zeros((3, 4))]
    assert nd.tests_mix(b=b, a=a, out=out) is out
    same_bits(out[1].asnumpy(), x * y)


def test_library_op_is_registered_with_signature_and_docs():
    assert nd.op.tests_mix is nd.tests_mix is _core.get_op("tests_mix")
    assert pickle.loads(pickle.dumps(nd.tests_mix)) is nd.tests_mix
    signature = "(a, b, scale=0.5, mode='plus', power=0, twice=False, label=None, out=None, "
    assert nd.tests_mix.__text_signature__.startswith(signature)
    assert "The sum of a and some b" in nd.tests_mix.__doc__
    assert "of two" in nd.tests_mix.__doc__.lower()
    assert mx.operator.get_operator_arguments("tests_scale").names == ["data", "weight"]
    assert nd.contrib.tests_copy(nd.ones((2,))).asnumpy().tolist() == [1, 1]
    assert mx.sym.contrib.tests_copy(mx.sym.var("x")).list_arguments() == ["x"]


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_library_op_accepts_empty_and_scalar_arrays(shape):
    if shape:
        assert [x.shape for x in nd.tests_mix(nd.ones(shape), nd.ones(shape))] == [shape] * 2
    x = nd.ones(shape, dtype="float64")
    assert nd.tests_exp(x).shape == shape


def test_library_op_argument_errors_name_the_op():
    a, b = arrays((3, 4), (3, 4))
    for call, error, text in [
        (lambda: nd.tests_mix(a, b, scale=11), mx.MXNetError, "tests_mix.*scale = 11.*-10..10"),
        (lambda: nd.tests_mix(a, b, mode="times"), mx.MXNetError, "mode takes one of plus|minus"),
        (lambda: nd.tests_mix(a, b, power=-1), mx.MXNetError, "power"),
        (lambda: nd.tests_mix(a, b, label=3), TypeError, "label"),
        (lambda: nd.tests_mix(a, b, other=3), TypeError, "no parameter 'other'"),
        (lambda: nd.tests_mix(a), TypeError, "tests_mix: the array b is missing"),
        (lambda: nd.tests_wrong(a), TypeError, "the parameter how is missing"),
        (
            lambda: nd.tests_mix(a, a[:2]),
            mx.MXNetError,
            r"tests_mix: b must have the shape \(3, 4\)",
        ),
        (lambda: nd.tests_mix(a.astype("float64"), b), mx.MXNetError, "dtype float64 is not supp"),
        (lambda: nd.tests_mix(a, b.astype("float64")), mx.MXNetError, "b must be float32"),
        (lambda: nd.tests_mix(a.reshape(12)[0].reshape(()), b), mx.MXNetError, "a has no axis"),
        (lambda: nd.tests_mix(a, b.as_in_context(on(1))), mx.MXNetError, "tests_mix.*as_in_conte"),
    ]:
        raises(error, text, call)


def test_library_callback_errors_name_the_op():
    x = nd.ones((2,))
    for how, text in enumerate(
        [
            "tests_wrong: infer says no",
            "tests_wrong: function infer of its library returned -7 without a message",
            "does not set the shape or dtype of output 0",
            *["an invalid shape or dtype for output 0"] * 4,
            "tests_wrong: data must have the shape",
            "an invalid shape or dtype for input 0",
        ]
    ):
        raises(mx.MXNetError, text, lambda: nd.tests_wrong(x, how=how))
    for how, text in [(10, "forward says no"), (11, "function forward of its library returned 5")]:
        with pytest.raises(mx.MXNetError, match=f"tests_wrong: {text}"):
            (nd.tests_wrong(x, how=how) + 1).asnumpy()
    x.attach_grad()
    backward_of(lambda: nd.tests_wrong(x, how=9))
    raises(mx.MXNetError, "tests_wrong: backward says no", lambda: x.grad.asnumpy())
    assert nd.tests_wrong(x, how=9).asnumpy().tolist() == [1, 1]  # other calls still work


def test_library_op_runs_on_its_device_thread():
    """Each device has its own thread, and Python continues meanwhile."""
    seen = set()
    for ctx in (on(0), on(1)):
        here = nd.tests_where(nd.ones((1,), ctx=ctx)).asscalar()
        assert here != threading.get_ident()
        seen.add(here)
    assert len(seen) == 2
    start = time.perf_counter()
    late = nd.tests_where(nd.ones((1,)), seconds=0.5)
    assert time.perf_counter() - start < 0.4 and late.asscalar() in seen


# Gradients


def numeric(function, x, step=1e-3):
    """Finite-difference gradient of a sum."""
    grad = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.asnumpy().astype("float64")
            moved[place] += sign * step
            sides.append(float(function(nd.array(moved, dtype=x.dtype)).sum().asscalar()))
        grad[place] = (sides[0] - sides[1]) / (2 * step)
    return grad


@pytest.mark.parametrize("hybridized", [False, True])
def test_library_op_gradients_match_finite_differences(hybridized):
    def mixed(a, b):
        total, product = nd.tests_mix(a, b, scale=1.5, mode="minus")
        return total * total + product

    def scaled(data, weight):
        return nd.tests_scale(data, weight) * data

    def exponential(x):
        return nd.tests_exp(x) * x

    for function, shapes, dtype in [
        (mixed, [(2, 3), (2, 3)], "float32"),
        (scaled, [(4, 3), (3,)], "float32"),
        (exponential, [(5,)], "float64"),
    ]:
        given = arrays(*shapes, dtype=dtype)
        for x in given:
            x.attach_grad()
        call = (
            _core.CachedOp(lambda *x: [function(*x)]) if hybridized else lambda *x: [function(*x)]
        )
        with autograd.record():
            (y,) = call(*given)
        y.backward()
        for i, x in enumerate(given):
            wanted = numeric(lambda moved: function(*given[:i], moved, *given[i + 1 :]), x)
            np.testing.assert_allclose(x.grad.asnumpy(), wanted, rtol=2e-2, atol=2e-2)


def test_library_op_computes_gradient_of_one_output_and_one_input():
    a, b = arrays((2, 3), (2, 3))
    b.attach_grad()  # a needs no gradient
    with autograd.record():
        total, product = nd.tests_mix(a, b)
    product.backward()
    same_bits(b.grad.asnumpy(), a.asnumpy())


def test_library_op_without_gradient_is_refused_in_backward():
    x = variable(nd.ones((3,), dtype="float64"))
    with autograd.record():
        (grad,) = autograd.grad(nd.tests_exp(x), [x], create_graph=True)
        raises(mx.MXNetError, "tests_exp: has no gradient.*second-order", grad.backward)
    x = variable(nd.ones((3,)))
    with autograd.record():
        y = nd.tests_where(x)
    raises(mx.MXNetError, "tests_where: has no gradient", y.backward)


def test_library_op_states_are_updated_and_have_no_gradient():
    x, calls = nd.ones((3,)), nd.zeros((1,), dtype="int64")
    x.attach_grad()
    nd.tests_count(x, calls)
    assert calls.asscalar() == 0
    for turn in range(3):
        backward_of(lambda: nd.tests_count(x, calls) * 2)
        assert calls.asscalar() == turn + 1 and x.grad.asnumpy().tolist() == [2, 2, 2]
    with autograd.train_mode(), pytest.raises(mx.MXNetError, match="out overlaps a state"):
        nd.tests_count(nd.ones((1,), dtype="int64"), calls, out=calls)
    sym = mx.sym.tests_count(mx.sym.var("x"), name="count")
    assert sym.list_auxiliary_states() == ["count_calls"]
    executor = sym.simple_bind(mx.cpu(), x=(3,))
    executor.forward(is_train=True)[0].asnumpy()
    assert executor.aux_dict["count_calls"].asscalar() == 1


# Blocks, symbols, pipelines


class Two(gluon.HybridBlock):
    """A layer of library ops on each of two devices."""

    def __init__(self, one, two):
        super().__init__()
        self.two = two
        with self.name_scope():
            self.first = self.params.get("first", shape=(0,), allow_deferred_init=True)
            self.second = self.params.get("second", shape=(4,))
        self.first.initialize(mx.init.Constant(0.75), ctx=one)
        self.second.initialize(mx.init.Constant(-1.25), ctx=two)

    def hybrid_forward(self, F, x, first, second):
        x = F.tests_scale(x, first)
        total, product = F.tests_mix(x, F.relu(x), scale=3)
        x = (total + product).as_in_context(self.two)
        return F.tests_scale(x, second)


def trained(one, two, hybridized):
    net = Two(one, two)
    if hybridized:
        net.hybridize()
    (x,) = arrays((5, 4), ctx=one)
    x.attach_grad()
    y = backward_of(lambda: net(x))
    grads = [parameter.grad().asnumpy() for parameter in net.collect_params().values()]
    return [y.asnumpy(), x.grad.asnumpy(), net(x).asnumpy(), *grads]


def test_library_op_bits_do_not_depend_on_placement():
    """The library infers the shape of a deferred weight."""
    one = trained(on(0), on(0), hybridized=False)
    for place in [(on(0), on(0)), (on(0), on(1)), (on(1), on(0))]:
        same_bits(trained(*place, hybridized=True), one)
        same_bits(trained(*place, hybridized=False), one)


def test_library_op_symbols_infer_shapes_save_and_run():
    sym = mx.sym.tests_scale(mx.sym.var("x"), name="scale")
    assert sym.list_arguments() == ["x", "scale_weight"]
    assert sym.infer_shape(x=(5, 4)) == ([(5, 4), (4,)], [(5, 4)], [])
    sym = mx.sym.load_json(mx.sym.tests_mix(sym, sym, scale=2, label="ab")[0].tojson())
    (x,) = arrays((5, 4))
    executor = sym.bind(on(0), {"x": x, "scale_weight": nd.ones((4,)) * 2})
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), x.asnumpy() * 2 * 5, rtol=1e-6)
    block = gluon.SymbolBlock(sym, mx.sym.var("x"))
    block.initialize(mx.init.One(), ctx=on(0))
    np.testing.assert_allclose(block(x).asnumpy(), x.asnumpy() * 5, rtol=1e-6)


class Layer(gluon.HybridBlock):
    def __init__(self, ctx, op):
        super().__init__()
        self.ctx, self.op = ctx, op
        with self.name_scope():
            self.dense = nn.Dense(6, in_units=6)
            self.weight = self.params.get("weight", shape=(6,), init=mx.init.One())

    def hybrid_forward(self, F, x, weight):
        x = self.dense(x.as_in_context(self.ctx))
        if self.op == "scale":
            return F.tests_scale(x, weight)
        return F.tests_mix(x, F.broadcast_mul(x, weight))[0]


def stages(op):
    net = nn.HybridSequential()
    mx.random.seed(4)
    for i in range(3):
        net.add(Layer(on(i), op))
        net[i].initialize(mx.init.Xavier(), ctx=on(i))
    return net


def test_pipeline_accepts_rowwise_library_op():
    (x,) = arrays((8, 6))
    results = []
    for pipelined in (True, False):
        net = stages("scale")
        net.hybridize(pipeline=Pipeline(4) if pipelined else None)
        y = backward_of(lambda: net(x))
        grads = [parameter.grad().asnumpy() for parameter in net.collect_params().values()]
        results.append([y.asnumpy(), *grads])
    for found, wanted in zip(*results):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_pipeline_refuses_library_op_across_the_batch():
    (x,) = arrays((8, 6))
    net = stages("mix")
    net.hybridize(pipeline=Pipeline(4))
    with pytest.raises(mx.MXNetError, match="tests_mix.*mixes data across the batch"):
        with autograd.record():
            net(x)


def test_amp_casts_library_op_inputs_to_supported_dtypes(path):
    printed = output_of(
        f"""
        import mpgluon as mx
        from mpgluon import autograd, gluon, nd
        from mpgluon.contrib import amp

        mx.library.load({path!r}, verbose=False)
        amp.init("float16")


        class Net(gluon.HybridBlock):
            def __init__(self):
                super().__init__()
                self.dense = gluon.nn.Dense(4, in_units=4)

            def hybrid_forward(self, F, x):
                return F.tests_mix(self.dense(x), x)[0]


        for hybridized in (False, True):
            net, x = Net(), nd.ones((2, 4))
            net.initialize(mx.init.One())
            if hybridized:
                net.hybridize()
            with autograd.record():
                y = net(x)
            y.backward()
            print(y.dtype.__name__, y.asnumpy()[0, 0], net.dense.weight.grad().asnumpy()[0, 0])
        """
    )
    assert printed.split() == ["float32", "4.5", "2.0"] * 2


def test_profiler_names_library_ops():
    mx.profiler.set_config(profile_all=True)
    mx.profiler.start()
    (x,) = arrays((3,), dtype="float64")
    x.attach_grad()
    backward_of(lambda: nd.tests_exp(x))
    mx.nd.waitall()
    mx.profiler.stop()
    assert {"tests_exp", "_backward_tests_exp"} <= {e["name"] for e in mx.profiler.events()}


# Libraries


def test_loading_a_library_twice_does_nothing(path, capfd):
    mx.library.load(path)
    assert capfd.readouterr().out == ""


def test_loading_a_library_prints_op_names(path):
    printed = output_of(
        f"""
        import mpgluon as mx
        mx.library.load({path!r})
        print(mx.sym.tests_exp(mx.sym.var("x"), name="y").list_outputs())
        """
    )
    assert printed.splitlines()[0].startswith(f"{path}: tests_mix, tests_scale, tests_exp")
    assert printed.splitlines()[1] == "['y_y']"


def test_op_header_compiles_as_c_and_cpp(folder):
    source = folder / "plain.cc"
    source.write_text(
        """
        #include <mpgluon/op.h>
        static int forward(const mpgluon_call *call) {
          return mpgluon_fail(call, "%d arrays", int(call->num_inputs));
        }
        static mpgluon_op make() {
          mpgluon_op op = {};
          op.name = "tests_plus_plus";
          op.inputs = "x";
          op.outputs = "y";
          op.dtypes = MPGLUON_SET(MPGLUON_FLOAT32) | MPGLUON_SET(MPGLUON_FLOAT16);
          op.forward = forward;
          return op;
        }
        static const mpgluon_op ops[] = {make()};
        MPGLUON_LIBRARY(ops);
        """
    )
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip("needs a C++ compiler")
    flags = ["-std=c++11", "-fvisibility=hidden", *STRICT]
    path = compiled(folder / "libplain.so", *flags, source=source, compiler=compiler)
    mx.library.load(path, verbose=False)
    with pytest.raises(mx.MXNetError, match="tests_plus_plus: 1 arrays"):
        nd.tests_plus_plus(nd.ones((2,))).asnumpy()


OP = "sizeof(mpgluon_op)"
MISTAKES = {
    ".forward = NULL": "tests_bad has neither forward nor cuda_forward",
    ".cuda_backward = copy": "tests_bad has a backward function for a device type that has no",
    ".name = NULL": 'an op cannot have the name ""',
    '.name = "3d"': 'an op cannot have the name "3d"',
    '.name = "tests_good"': "two of its ops have the name tests_good",
    '.name = "softmax"': "op softmax exists already",
    '.name = "tests_mix"': "op tests_mix exists already",
    '.name = "NDArray"': "mx.nd already has an attribute NDArray",
    '.name = "_contrib_foreach"': "mx.nd already has an attribute _contrib_foreach",
    ".inputs = NULL": "tests_bad has no inputs",
    '.inputs = "a b?"': 'the inputs must be names separated by commas, got "a b\\?"',
    '.inputs = "a, !a"': "two of its inputs have the name a",
    '.inputs = "!a"': "the first input and the outputs cannot be states",
    '.outputs = ""': "tests_bad has no outputs",
    '.outputs = "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q"': "more than 16 outputs",
    ".dtypes = 0": "dtypes 0 is not a valid set",
    ".dtypes = 1 << 9": "dtypes 0x200 is not a valid set",
    ".flags = 2": "unknown flags: 0x2",
    ".num_row_inputs = 3": "2 inputs, so num_row_inputs cannot be 3",
    ".num_params = 33": "num_params is 33; it must be from 0 to 32",
    ".num_params = -1": "num_params is -1",
    ".num_params = 1, .params = NULL": "num_params is 1; it must be from 0 to 32, with params",
    "PARAM(NULL, MPGLUON_TEXT, NULL, NULL)": 'a parameter cannot have the name ""',
    'PARAM("out", MPGLUON_TEXT, NULL, NULL)': 'a parameter cannot have the name "out"',
    'PARAM("other", MPGLUON_TEXT, NULL, NULL)': "an input and a parameter have the same name other",
    'PARAM("k", 6, NULL, NULL)': "parameter k has the unknown kind 6",
    'PARAM("k", MPGLUON_NUMBER, "many", NULL)': "parameter k must be a number, got 'many'",
    'PARAM("k", MPGLUON_NUMBER, "3", "0..1")': "k = 3 is outside its range",
    'PARAM("k", MPGLUON_TEXT, "required", NULL)': "the default of k cannot be .required.",
    'PARAM("k", MPGLUON_NUMBER, NULL, "small")': '"small" is not a valid range of parameter k',
    'PARAM("k", MPGLUON_CHOICE, NULL, NULL)': '"" is not a valid range of parameter k',
    'PARAM("k", MPGLUON_CHOICE, "c", "a|b")': '"c" is not one of the choices of parameter k',
}
TABLES = {
    f"{{2, {OP}, ops, 2}}": "version 2 of mpgluon/op.h, but this mpgluon has version 1; recompile",
    f"{{0, {OP}, ops, 2}}": "version 0 of mpgluon/op.h",
    "{1, 8, ops, 2}": "its table of ops is invalid",
    f"{{1, {OP}, 0, 2}}": "its table of ops is invalid",
    f"{{1, {OP}, ops, -1}}": "its table of ops is invalid",
}


def refused(path, text):
    with pytest.raises(mx.MXNetError, match=text) as error:
        mx.library.load(path)
    assert path in str(error.value)
    assert not hasattr(nd, "tests_good") and "tests_bad" not in _core.ops()


def test_invalid_op_in_library_registers_nothing(folder):
    source = folder / "mistakes.c"
    source.write_text(
        "#define PARAM(...) .num_params = 1, .params = (const mpgluon_param[]){{__VA_ARGS__, 0}}\n"
        f'#include "{LIBRARY}"\n'
    )
    for number, (mistake, text) in enumerate(MISTAKES.items()):
        target = folder / f"libmistake{number}.so"
        refused(compiled(target, "-DMISTAKE=" + mistake, "-w", source=source), text)


def test_invalid_library_table_is_refused(folder):
    for number, (table, text) in enumerate(TABLES.items()):
        flags = ["-DMISTAKE=.flags=0", "-DTABLE=" + table, "-w"]
        refused(compiled(folder / f"libtable{number}.so", *flags), text)


def test_file_that_is_not_an_op_library_is_refused(folder, tmp_path, monkeypatch):
    target = folder / "libmxnet_ops.so"
    refused(compiled(target, "-DMISTAKE", "-DNO_TABLE", "-w"), "built with MXNet's lib_api.h")
    plain = tmp_path / "empty.c"
    plain.write_text("int nothing;\n")
    refused(compiled(tmp_path / "libempty.so", source=plain), "it does not export a table of ops")
    text = tmp_path / "text.so"
    text.write_text("no library")
    refused(str(text), "text.so cannot be opened: .*")
    open_ended = tmp_path / "open.c"
    open_ended.write_text("int nowhere(void); int f(void) { return nowhere(); }\n")
    refused(compiled(tmp_path / "libopen.so", source=open_ended), "undefined symbol: nowhere")
    refused(str(tmp_path / "none.so"), "does not exist")
    whole = (tmp_path / "libempty.so").read_bytes()
    for size in (30, 1000, 5000, len(whole) // 2):
        cut = tmp_path / f"cut{size}.so"
        cut.write_bytes(whole[:size])
        refused(str(cut), "cut[0-9]+.so'? (is truncated|cannot be opened)")
    monkeypatch.chdir(tmp_path)
    raises(mx.MXNetError, "'text.so' is not an absolute path", lambda: mx.library.load("text.so"))
    refused(str(plain), "its name does not end in .so")


def test_gpu_only_library_op_is_refused_on_cpu(folder):
    path = compiled(folder / "libgpus.so", "-DMISTAKE=.forward = NULL, .cuda_forward = copy", "-w")
    printed = output_of(
        f"""
        import mpgluon as mx
        from mpgluon import nd
        mx.library.load({path!r}, verbose=False)
        try:
            nd.tests_bad(nd.ones((2,)), nd.ones((2,)))
        except NotImplementedError as error:
            print(error)
        """
    )
    assert f"tests_bad cannot run on cpu(0): its library {path} has no forward" in printed

"""Collectives between cards through NCCL (the stand-in, or the real library with several
cards)."""

import ctypes
import os
import shutil

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import _core, autograd, nd, parallel as par
from support.collective_cases import NAMES, Collective, arrays_of, cases
from support.processes import finished, output_of
from support.stand_in import ON_STAND_IN

LIBRARY = os.environ.get("MPGLUON_CUDA_LIBRARY", "")
CARDS = 0 if os.environ.get("MPGLUON_GPU_LOGICAL") else mx.num_gpus()
pytestmark = pytest.mark.skipif(
    CARDS < 2 or os.environ.get("MPGLUON_TEST_DEVICES", "")[:3] != "gpu",
    reason="needs several cards",
)
needs_stand_in = pytest.mark.skipif("hostcuda" not in LIBRARY, reason="needs the stand-in for CUDA")
COUNTS = [n for n in (1, 2, 3, 4) if n <= CARDS]
SINGLE = [name for name in NAMES if name != "two_shot"]


@pytest.fixture(autouse=True)
def nccl():
    with par.collectives.transport("nccl"):
        yield


def stand_in():
    return ctypes.CDLL(os.path.join(os.path.dirname(LIBRARY), "libnccl.so.2"))


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("shape, axis", [((7, 5), 0), ((12, 24), 1)])
def test_nccl_collective_values_and_gradients_match_references(name, count, hybridize, shape, axis):
    call, reference, backward = cases(count, axis)[name]
    values, arrays = arrays_of(count, shape, scale=False)
    if hybridize:
        block = Collective(call)
        block.hybridize()
        call = lambda x: block(*x)
    for _ in range(3):  # the third pass replays captures
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            outputs = list(call(arrays))
        expected = reference(values)
        rng = np.random.RandomState(1)
        grads = [rng.standard_normal(e.shape).astype("float32") for e in expected]
        autograd.backward(outputs, [nd.array(g, ctx=out.context) for g, out in zip(grads, outputs)])
        for out, value in zip(outputs, expected):
            np.testing.assert_allclose(out.asnumpy(), value, rtol=1e-5, atol=1e-6)
        used = 1 if name in ("scatter", "broadcast") else count
        for array, grad in zip(arrays[:used], backward(values, grads)):
            assert array.grad.context == array.context
            np.testing.assert_allclose(array.grad.asnumpy(), grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64"]
)
def test_nccl_collectives_support_all_dtypes(dtype):
    arrays = [
        nd.array(np.arange(6).reshape(2, 3) + i, ctx=mx.gpu(i)).astype(dtype) for i in range(2)
    ]
    total = np.arange(6).reshape(2, 3) * 2 + 1
    for out in par.all_reduce(arrays):
        assert out.dtype == arrays[0].dtype
        assert np.array_equal(out.astype("float32").asnumpy(), total)
    for out in par.all_gather(arrays):
        assert np.array_equal(
            out.astype("float32").asnumpy()[2:], arrays[1].astype("float32").asnumpy()
        )
    flags = par.broadcast(
        nd.array([True, False], ctx=mx.gpu(0), dtype="bool"), [mx.gpu(0), mx.gpu(1)]
    )
    assert flags[1].asnumpy().tolist() == [True, False]


def test_nccl_all_reduce_has_the_same_bits_on_all_devices():
    _, arrays = arrays_of(COUNTS[-1], (33, 5))
    results = [out.asnumpy() for out in par.all_reduce(arrays)]
    assert all(np.array_equal(r, results[0]) for r in results)
    again = [out.asnumpy() for out in par.all_reduce(arrays)]
    assert all(np.array_equal(a, b) for a, b in zip(results, again))


def test_auto_selects_nccl_between_cards_only():
    def ops(arrays, ctx, transport="auto", kind="all_reduce"):
        return _core.collective_plan(kind, arrays, ctx, 0, 0, None, "auto", transport)["ops"]

    _, arrays = arrays_of(2, (4, 3))
    devices = [a.context for a in arrays]
    assert ops(arrays, devices) == ["_collective"] == ops(arrays, devices, "nccl")
    on_cpus = ops([nd.ones(3, ctx=mx.cpu(0)), nd.ones(3, ctx=mx.cpu(1))], [mx.cpu(0), mx.cpu(1)])
    assert "_collective" not in on_cpus
    assert on_cpus[-2:] == ["add_n"] * 2 and on_cpus.count("_copyto") == 2  # copies precede sums
    assert "_collective" not in ops([arrays[0], nd.ones((4, 3))], [devices[0], mx.cpu()])
    assert "_collective" not in ops([arrays[0], arrays[0]], [devices[0]] * 2)
    with pytest.raises(
        NotImplementedError, match=r"NCCL works only between GPUs, but cpu\(0\) is not a GPU"
    ):
        par.all_reduce([arrays[0], nd.ones((4, 3), ctx=mx.cpu())])
    with pytest.raises(
        mx.MXNetError, match=r"two arrays are on gpu\(0\), but NCCL takes one array from each GPU"
    ):
        par.all_reduce([arrays[0], arrays[0]])


def run(code, **settings):
    """Returns stdout and stderr of the code."""
    done = finished(code, timeout=200, **settings)
    return done.stdout + done.stderr


SUM = """
    import mpgluon as mx
    from mpgluon import parallel as par
    def total(transport):
        try:
            arrays = [mx.nd.ones((2,), ctx=mx.gpu(i)) * (i + 1) for i in range(2)]
            print([a.asnumpy().tolist() for a in par.all_reduce(arrays, transport=transport)])
        except mx.base.MXNetError as error:
            print(error)
"""


@needs_stand_in
def test_auto_falls_back_for_logical_gpus_or_without_nccl(tmp_path):
    both = SUM + "    total('nccl')\n    total('auto')\n"
    out = run(both, MPGLUON_GPU_LOGICAL="2", HOSTCUDA_DEVICES="1")
    assert "gpu(0) and gpu(1) are on one card" in out
    assert "transport='local'" in out
    assert "[[3.0, 3.0], [3.0, 3.0]]" in out
    alone = shutil.copy(LIBRARY, tmp_path / "mpgluon_hostcuda.so")
    out = run(both, MPGLUON_CUDA_LIBRARY=str(alone), MPGLUON_NCCL=str(tmp_path))
    assert "NCCL (libnccl.so.2) is needed for this on a GPU but was not found" in out
    assert "pip install nvidia-nccl-cu13, or set its folder with MPGLUON_NCCL" in out
    assert "[[3.0, 3.0], [3.0, 3.0]]" in out


@needs_stand_in
def test_communicators_are_destroyed_at_exit():
    assert "nccl stand-in: 0 left" in run(
        SUM + "    total('nccl')\n    total('auto')\n", HOSTCUDA_REPORT="1"
    )


@needs_stand_in
def test_environment_variable_selects_the_transport():
    assert "there are" not in run(SUM + "    total(None)\n", MPGLUON_COLLECTIVES="local")
    out = run(
        "import mpgluon as mx\ntry:\n    mx.parallel.all_reduce([mx.nd.ones(2)])\nexcept "
        "ValueError as error:\n    print(error)",
        MPGLUON_COLLECTIVES="smoke",
    )
    assert "MPGLUON_COLLECTIVES is 'smoke'; it must be one of auto, local, nccl" in out


FAILURE = (
    SUM
    + """
    import ctypes, os
    folder = os.path.dirname(os.environ['MPGLUON_CUDA_LIBRARY'])
    nccl = ctypes.CDLL(os.path.join(folder, 'libnccl.so.2'))
    {before}
    nccl.hostcuda_nccl_fail({how})
    total('nccl')
    total('nccl')
    total('local')
"""
)


@needs_stand_in
@pytest.mark.parametrize(
    "how, before, text",
    [
        (1, "", "ncclCommInitAll failed: unhandled system error: the stand-in's own"),
        (2, "total('nccl')", "ncclGroupEnd failed: internal error: the stand-in's own"),
    ],
)
def test_failed_nccl_call_raises_at_the_wait(how, before, text):
    """The devices continue to work."""
    out = run(FAILURE.format(how=how, before=before))
    assert text in out and out.count("[[3.0, 3.0], [3.0, 3.0]]") == 2 + bool(before)


@needs_stand_in
def test_failing_collective_loses_its_devices_without_a_hang():
    """Its devices report why they are lost, the others continue, and the process ends."""
    code = (
        FAILURE.format(how=3, before="total('nccl')")
        + "    print((mx.nd.ones(2, ctx=mx.gpu(3)) + 1).asnumpy())\n"
    )
    out = run(code)
    assert "a collective of NCCL failed: unhandled system error" in out
    assert "is lost" in out
    assert "[2. 2.]" in out


@needs_stand_in
def test_card_lost_before_a_collective_raises():
    code = (
        SUM
        + """
    import ctypes, os
    arrays = [mx.nd.ones((2,), ctx=mx.gpu(i)) for i in range(3)]
    mx.nd.waitall()
    ctypes.CDLL(os.environ['MPGLUON_CUDA_LIBRARY']).hostcuda_break(1)
    try:
        for array in par.all_reduce(arrays, transport='nccl'):
            array.asnumpy()
    except mx.base.MXNetError as error:
        print('failed:', error)
    print((mx.nd.ones(2, ctx=mx.gpu(3)) + 1).asnumpy())
    """
    )
    out = run(code)
    assert "[2. 2.]" in out and "failed:" in out


GRADIENTS = """
    import ctypes, os
    import numpy as np
    import mpgluon as mx
    from mpgluon import autograd, gluon, nd
    from mpgluon.gluon import nn

    contexts = [mx.gpu(i) for i in range(3)]
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(600, in_units=700, activation="tanh"), nn.Dense(4, in_units=600))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, **OPTIONS)
    random = np.random.RandomState(0)
    for _ in range(3):
        x = gluon.utils.split_and_load(nd.array(random.uniform(-1, 1, (12, 700))), contexts)
        with autograd.record():
            losses = [(net(part) ** 2).sum() for part in x]
        autograd.backward(losses)
        trainer.step(12)
    for parameter in net.collect_params().values():
        copies = [array.asnumpy() for array in parameter.list_data()]
        assert all(np.array_equal(copies[0], copy) for copy in copies)
        print(" ".join(map(repr, copies[0].astype(float).ravel()[:50].tolist())))
    path = os.path.join(os.path.dirname(os.environ["MPGLUON_CUDA_LIBRARY"]), "libnccl.so.2")
    count = ctypes.CDLL(path).hostcuda_nccl_count() if os.path.exists(path) else -1
    print("collectives", count)
"""


@pytest.mark.parametrize(
    "options", ["{}", "{'update_on_kvstore': False}", "{'clip_global_norm': 1.0}"]
)
def test_replica_gradients_are_summed_by_nccl(options):
    """Between cards NCCL is used; between logical GPUs or by request, in-process sums."""
    if CARDS < 3:
        pytest.skip("needs three cards")
    code = GRADIENTS.replace("OPTIONS", options)
    found, settings = {}, {"auto": {}, "local": {"MPGLUON_COLLECTIVES": "local"}}
    if ON_STAND_IN:
        settings["logical"] = {"MPGLUON_GPU_LOGICAL": "3", "HOSTCUDA_DEVICES": "2"}
    for how, more in settings.items():
        *lines, last = output_of(code, timeout=200, **more).splitlines()
        found[how] = np.array([float(word) for line in lines for word in line.split()])
        if ON_STAND_IN:
            assert (int(last.split()[1]) > 0) == (how == "auto"), (how, last)
    for values in found.values():
        np.testing.assert_allclose(values, found["local"], rtol=1e-5, atol=1e-7)
    if ON_STAND_IN:
        assert np.array_equal(found["local"], found["logical"])


def test_steps_with_collectives_do_not_synchronize():
    """Steps queue their work and return; the host does not wait for any card."""
    if "hostcuda" not in LIBRARY:
        pytest.skip("needs the stand-in's counts")
    counts = ctypes.CDLL(LIBRARY)
    counts.hostcuda_count.restype = ctypes.c_long
    block = Collective(lambda x: par.all_reduce([(a * 2).tanh() for a in x]))
    block.hybridize()
    _, arrays = arrays_of(COUNTS[-1], (64, 64))
    for array in arrays:
        array.attach_grad()

    def step():
        with autograd.record():
            out = block(*arrays)
        autograd.backward(out)

    for _ in range(4):
        step()
    mx.nd.waitall()
    before = counts.hostcuda_count(b"synchronize")
    for _ in range(4):
        step()
    mx.nd.waitall()
    assert counts.hostcuda_count(b"synchronize") == before

"""Pinned memory: page-locked by the driver, copied without staging, intact in a forked child."""

from support.processes import finished, output_of
from support.stand_in import needs_gpu, needs_stand_in

pytestmark = [needs_gpu, needs_stand_in]
START = """
    import ctypes, os
    import numpy as np
    import mpgluon as mx
    from mpgluon import autograd, gluon, nd
    library = ctypes.CDLL(os.environ["MPGLUON_CUDA_LIBRARY"])
    count = lambda what: library.hostcuda_count(what)
    pinned = mx.cpu_pinned(0)
"""


def test_pinned_memory_is_locked_and_copied_directly():
    out = output_of(
        START
        + """
    values = np.arange(300000, dtype="float32")
    plain, locked = nd.array(values), nd.array(values, ctx=pinned)
    print(count(b"locked"), plain.context, locked.context)
    there = plain.as_in_context(mx.gpu(0))
    there.wait_to_read()
    print(count(b"direct"))
    again = locked.as_in_context(mx.gpu(1))
    assert (again.asnumpy() == values).all()
    print(count(b"direct"))
    back = (again + 1).as_in_context(pinned)
    assert (back.asnumpy() == values + 1).all()
    print(count(b"direct"), back.context)
    del locked, back
    nd.waitall()
    before = count(b"locked")
    nd.array(values, ctx=pinned)  # a block that was kept
    print(count(b"locked") - before)
    pinned.empty_cache()
    print(count(b"locked"))
    """
    )
    assert out.splitlines() == ["1 cpu(0) cpu_pinned(0)", "0", "1", "2 cpu_pinned(0)", "0", "0"]


def test_writes_and_frees_wait_for_copies_to_gpus():
    finished(
        START
        + """
    size = 50000
    for i in range(6):
        x = nd.full((size,), i, ctx=pinned)
        there = x.as_in_context(mx.gpu(0))
        x[:] = -1
        x = nd.full((size,), -2, ctx=pinned)
        assert (there.asnumpy() == i).all(), i
        there = nd.full((size,), i, ctx=pinned).as_in_context(mx.gpu(1))
        other = nd.full((size,), -3, ctx=pinned)
        assert (there.asnumpy() == i).all(), i
    """,
        HOSTCUDA_DELAY="30000",
    )


def test_pinned_loader_batches_train_a_network_on_gpus():
    out = output_of(
        START
        + """
    random = np.random.RandomState(0)
    data = gluon.data.ArrayDataset(random.rand(64, 400).astype("float32"),
                                   random.rand(64).astype("float32"))
    losses = {}
    for pin in (False, True):
        mx.random.seed(1)
        net = gluon.nn.Dense(1, in_units=400)
        net.initialize(ctx=mx.gpu(0))
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
        for x, y in gluon.data.DataLoader(data, 48, num_workers=2, pin_memory=pin):
            x, y = x.as_in_context(mx.gpu(0)), y.as_in_context(mx.gpu(0))
            with autograd.record():
                loss = ((net(x).reshape((-1,)) - y) ** 2).sum()
            loss.backward()
            trainer.step(len(x))
        losses[pin] = net.weight.data().asnumpy(), count(b"direct") > 0
    assert (losses[False][0] == losses[True][0]).all()
    print(losses[False][1], losses[True][1])
    """,
        HOSTCUDA_DELAY="2000",
    )
    assert out == "False True\n"


def test_memory_that_cannot_be_locked_raises():
    out = output_of(
        START
        + """
    small = nd.ones((10,), ctx=pinned)
    try:
        nd.ones((300000,)).as_in_context(pinned)
    except mx.MXNetError as error:
        print(type(error).__name__, str(error).splitlines()[0])
    print(small.asnumpy().sum(), (small + 1).sum().asscalar())
    """,
        HOSTCUDA_LOCKED="100000",
    )
    lines = out.splitlines()
    assert "page-locking of host memory failed" in lines[0] and lines[1] == "10.0 20.0", out


def test_forked_child_has_pinned_arrays():
    out = output_of(
        START
        + """
    x = nd.array(np.ones(50000, "float32"), ctx=pinned)
    x.as_in_context(mx.gpu(0)).wait_to_read()
    child = os.fork()
    if not child:
        y = nd.ones((7,), ctx=pinned)
        ok = x.asnumpy().sum() == 50000 and y.asnumpy().sum() == 7
        del x, y
        pinned.empty_cache()
        os._exit(0 if ok else 1)
    print(os.waitpid(child, 0)[1], x.asnumpy().sum())
    """
    )
    assert out == "0 50000.0\n"

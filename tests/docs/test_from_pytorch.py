"""The tables of differences in docs/from-pytorch.md: silent ones are silent, and the others warn or
raise as the page says."""

import os
import re
import warnings

import numpy
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn, rnn
from support.devices import cpus_only
from support.paths import ROOT

pytestmark = cpus_only
PAGE = os.path.join(ROOT, "docs", "from-pytorch.md")
if not os.path.isfile(PAGE):
    pytest.skip("the docs are not here", allow_module_level=True)

NAMES = {"mx": mx, "autograd": autograd, "gluon": gluon, "nd": nd, "nn": nn, "rnn": rnn}
# Programs for the rows whose first cell is not one, by the first characters of the cell
PROGRAMS = {
    "`nn.Dense(5)` on": "layer = nn.Dense(5); layer.initialize(); layer(nd.ones((2, 3, 4)))",
    "`net.initialize()`": "nn.Dense(3).initialize()",
    "an `Embedding` index": "layer = nn.Embedding(9, 2); layer.initialize(); layer(x * 9)",
    "a label of -100": "gluon.loss.SoftmaxCrossEntropyLoss()(x, nd.array([-100, 1]))",
    "`loss(net(x), y).mean()`": """
with autograd.record():
    mean = gluon.loss.L2Loss()(net(x), x).mean()
mean.backward()
trainer.step(len(x))""",
    "`backward` twice": """
with autograd.record():
    first, second = net(x), net(x)
first.backward()
second.backward()""",
    "`with autograd.pause()": "with autograd.pause():\n    net(x)",
    "`FactorScheduler(": "mx.lr_scheduler.FactorScheduler(step=30)",
    "SGD with momentum": """
trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
trainer.set_learning_rate(0.001)""",
    "Python code in": """
block = nn.HybridLambda(lambda F, x: x * numpy.random.rand())
block.hybridize()
assert (block(x) == block(x)).min().item()""",
    "`net.train()`": "net.train()",
    "`self.layers": "block.layers = [nn.Dense(2)]; block.collect_params()",
    "a NumPy mask": "nd.zeros((3,), dtype='float16') + numpy.array([-1e9, 0, 0])",
    "`nn.LayerNorm(8)`": "layer = nn.LayerNorm(8); layer.initialize(); layer(x)",
    "`x += 1`": """
x.attach_grad()
with autograd.record():
    y = x * x
    y += 1""",
    "`backward` without": "net(x).backward()",
    "Adam with": """
schedule = mx.lr_scheduler.FactorScheduler(step=30, base_lr=0.1)
options = {"lr_scheduler": schedule, "learning_rate": 0.5}
gluon.Trainer(net.collect_params(), "adam", options)""",
    "`if x.sum()": """
block = nn.HybridLambda(lambda F, x: x if x.sum() > 0 else -x)
block.hybridize()
block(x)""",
}


def rows(heading):
    with open(PAGE, encoding="utf-8") as page:
        section = page.read().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = [line.strip("|").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in row] for row in table[2:]]


def program(cell):
    found = [code for start, code in PROGRAMS.items() if cell.startswith(start)]
    return found[0] if found else re.match("`(.*?)`", cell)[1]


def outcome(code):
    """Returns "raises", "warns" or "runs"."""
    net = nn.Dense(3, in_units=3)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    x, head, block = nd.array([[1, 2, 3], [4, 5, 6]]), nn.Dense(3), gluon.HybridBlock()
    scope = dict(NAMES, numpy=numpy, net=net, trainer=trainer, x=x, head=head, block=block)
    # A library may have turned NumPy's own warnings off for the process.
    with warnings.catch_warnings(record=True) as caught, numpy.errstate(all="warn"):
        warnings.simplefilter("always")
        try:
            exec(code, scope)
            nd.waitall()
        except AssertionError as error:
            if not str(error):
                raise
            return "raises"
        except (NameError, SyntaxError):
            raise  # the program of this test is wrong
        except Exception:
            return "raises"
    return "warns" if caught else "runs"


SILENT, LOUD = rows("Silent differences"), rows("Differences that warn or raise")


@pytest.mark.parametrize("row", SILENT, ids=lambda row: row[0])
def test_silent_difference_runs_without_warning(row):
    assert outcome(program(row[0])) == "runs"


@pytest.mark.parametrize("row", LOUD, ids=lambda row: row[0])
def test_loud_difference_warns_or_raises_as_listed(row):
    assert outcome(program(row[0])) == row[1].split(":")[0].split()[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: nd.ones((2, 3)).transpose(0, 1),
        lambda: nd.ones((2, 3)).transpose(-2, -1),
        lambda: nn.BatchNorm(momentum=0.1),
        lambda: nn.BatchNormReLU(momentum=0.1),
    ],
)
def test_warning_names_the_line_of_the_program(call):
    with pytest.warns(UserWarning) as caught:
        call()
    assert [warning.filename for warning in caught] == [__file__]


def test_calls_that_mean_the_same_in_pytorch_do_not_warn():
    x = nd.array([[1, 2, 3], [4, 5, 6]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for axes in ((1, 0), (-1, -2), ((0, 1),), ((1, 0),), ()):
            assert (x.transpose(*axes).asnumpy() == x.asnumpy().transpose(*axes)).all()
        assert nd.ones((2, 3, 4)).transpose(1, 0, 2).shape == (3, 2, 4)
        for momentum in (0, 0.5, 0.9, 1):
            nn.BatchNorm(momentum=momentum)


def test_transpose_of_two_axes_names_swapaxes():
    for x in (nd.ones((2, 3, 4)), nd.ones((3,))):
        with pytest.raises(mx.base.MXNetError, match=r"x\.swapaxes\(0, 1\)"):
            x.transpose(0, 1)


def test_tables_of_differences_are_complete():
    assert len(SILENT) > 20 and len(LOUD) > 15
    cells = [row[0] for row in SILENT + LOUD]
    assert all(any(cell.startswith(start) for cell in cells) for start in PROGRAMS)
    assert {len(row) for row in SILENT} == {4} and {len(row) for row in LOUD} == {3}


def test_replacements_give_what_pytorch_gives():
    x = nd.array([[1, 2, 3], [4, 5, 6]])
    shapes = [x.swapaxes(0, 1), x.tile((2, 1)), x.reshape(-1), nd.concat(x, x, dim=0)]
    assert [array.shape for array in shapes] == [(3, 2), (4, 3), (6,), (4, 3)]
    assert [part.shape for part in x.split(2, axis=0)] == [(1, 3)] * 2
    assert x.sort(1, False)[0].asnumpy().tolist() == [3, 2, 1]
    assert (numpy.where(x > 2, 7, x).asnumpy() == [[1, 2, 7], [7, 7, 7]]).all()
    values, _ = nd.topk(x, k=2, ret_typ="both")
    assert values.asnumpy().tolist() == [[3, 2], [6, 5]]
    x[:, 0] = 0
    assert x[:, 0].sum().item() == 0
    dense = nn.Dense(5, flatten=False)
    dense.initialize()
    assert dense(nd.ones((2, 3, 4))).shape == (2, 3, 5)
    assert gluon.loss.L2Loss(weight=2)(nd.ones((1, 2)), nd.zeros((1, 2))).item() == 1
    mask = gluon.loss.SoftmaxCrossEntropyLoss()(x, nd.array([-100, 1]), nd.array([[0], [1]]))
    assert mask[0].item() == 0
    with autograd.record(), autograd.pause(train_mode=True):
        assert autograd.is_training() and not autograd.is_recording()
    assert nd.array([1, 2], dtype="int64").dtype == numpy.int64

"""The tool that reads MXNet programs and reports the changes that they need."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from mpgluon import gluon, nd, port
from mpgluon.port import _package, _rows
from support.processes import environment

PROGRAM = """\
    # -*- coding: utf-8 -*-
    import mxnet, os
    import mxnet.ndarray as nd, numpy as np  # kept
    from mxnet import gluon as g
    from mxnet.ndarray.utils import load
    try:
        import mxnet as mx
    except ImportError:
        mx = None

    def shadowed(nd):
        return nd.no_such_op()

    class Two(g.Block):
        def forward(self, x):
            return self.b(self.a(x).as_in_context(mx.gpu(1)))

    class Net(g.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.relu(x) + F.no_such_op(x)

    été = nd.array([1.0]); nd.contrib.hawkesll()
    nd.Dropout(été, p=1)
    nd.Dropout(été, p=0.5)
    np.float(mx.nd.softmax(été, dtype="float32").sum())
    g.nn.Dense(3, unitz=4)
"""


def program(path, text=PROGRAM):
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def found(report, *kinds):
    return [(one.line, one.name) for one in report.findings if one.kind in kinds]


def test_port_reports_imports_missing_and_differing_names(tmp_path):
    (report,) = port.read([program(tmp_path / "a.py")])
    imports = [(2, "mxnet"), (3, "mxnet.ndarray"), (4, "mxnet"), (5, "mxnet.ndarray.utils")]
    assert found(report, "import") == [*imports, (7, "mxnet")]
    # names of function parameters are not reported
    assert found(report, "missing") == [
        (20, "F.no_such_op"),
        (22, "mx.ndarray.contrib.hawkesll"),
        (26, "mx.gluon.nn.Dense"),
    ]
    assert found(report, "differs") == [(23, "mx.ndarray.Dropout")]
    assert found(report, "check") == [(25, "mx.nd.softmax")]
    assert found(report, "python") == [(25, "numpy.float")]
    assert [one.line for one in report.findings if one.kind == "one block"] == [16]
    assert (24, "mx.ndarray.Dropout") in found(report, "runs")
    hawkes = next(one for one in report.findings if one.name.endswith("hawkesll"))
    assert "foreach" in hawkes.text and hawkes.column == 24  # column in characters, not bytes
    assert report.lines_that_use_mxnet == 14 and report.lines_that_run == 4


def test_write_changes_only_imports_and_is_idempotent(tmp_path):
    """The second run changes nothing."""
    path = tmp_path / "a.py"
    before = textwrap.dedent(PROGRAM).replace("\n", "\r\n").encode()
    path.write_bytes(before)
    path.chmod(0o750)
    (tmp_path / "link.py").symlink_to(path)
    (report,) = port.read([str(tmp_path / "link.py")], write=True)
    after = path.read_bytes()
    changes = {
        b"import mxnet, os": b"import mpgluon as mxnet, os",
        b"import mxnet.ndarray as nd, numpy as np  # kept": (
            b"import mpgluon.ndarray as nd, numpy as np  # kept"
        ),
        b"from mxnet import": b"from mpgluon import",
        b"from mxnet.ndarray.utils import": b"from mpgluon.ndarray import",
        b"import mxnet as mx": b"import mpgluon as mx",
    }
    for old, new in changes.items():
        before = before.replace(old, new)
    assert report.written and after == before and path.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "link.py").is_symlink() and len(os.listdir(tmp_path)) == 2
    (report,) = port.read([str(path)], write=True)
    assert not report.written and path.read_bytes() == after and not found(report, "import")
    assert [line for line, _ in found(report, "missing")] == [20, 22, 26]


def test_cpu_option_rewrites_gpu_devices(tmp_path):
    path = tmp_path / "a.py"
    program(path, "import mxnet as mx\né = [mx.gpu(i) for i in (0, 1)], mx.context.gpu\n")
    port.read([str(path)], write=True)
    assert "mx.gpu(i)" in path.read_text()
    port.read([str(path)], write=True, cpu=True)
    assert path.read_text().endswith("é = [mx.cpu(i) for i in (0, 1)], mx.context.cpu\n")


def test_cpu_option_rewrites_gpu_devices_of_npx(tmp_path):
    path = tmp_path / "a.py"
    program(
        path, "from mxnet import np, npx\nx = np.ones(2, ctx=npx.gpu(0)).as_in_ctx(npx.gpu())\n"
    )
    port.read([str(path)], write=True, cpu=True)
    assert path.read_text().endswith("ctx=npx.cpu(0)).as_in_ctx(npx.cpu())\n")


@pytest.mark.parametrize(
    "text, said",
    [
        ("import mxnet.no_such_module\n", "missing"),
        ("from mxnet import no_such_name, nd\n", "missing"),
        ("from mxnet.gluon.loss import ndarray\n", "import it from mpgluon"),
        ("from mxnet.base import check_call\n", "C library"),
        ("import importlib\nimportlib.import_module('mxnet')\n", "by a string"),
        ("import gluoncv\n", "as_mxnet"),
        ("from gluonnlp import data\n", "as_mxnet"),
        ("import horovod.mxnet as hvd\n", "missing write mx.parallel.DistributedTrainer"),
        ("import byteps.mxnet as bps\n", "docs/horovod.md"),
        ("import mxnet as mx\nmx.npx.set_np()\n", ""),
        ("from mxnet import gluon\ngluon.Trainer(p, 'lans')\n", "unknown optimizer 'lans'"),
        ("from mxnet import gluon\ngluon.Trainer(params=p, optimizer='lans')\n", "did you mean 'l"),
        ("from mxnet import gluon\ngluon.Trainer(p, 'Adam')\n", ""),
        ("import mxnet as mx\nmx.optimizer.create('lans')\n", "unknown optimizer 'lans'"),
        ("from mxnet import npx\nnpx.box_nms(x)\n", "use mx.nd.contrib.box_nms"),
        ("from mxnet import np\nnp.random.normal_n(x)\n", "use npx.random.normal_n"),
        ("import mxnet as mx\nmx.amp.init()\n", "use mx.contrib.amp"),
        ("from mxnet import np, npx\nnp.nanmax(npx.load('f')['x'])\n", ""),
        ("from mxnet import np\nnp.msort(x)\n", "missing module 'mxnet.numpy' has no attribute"),
        ("from mxnet import np\nnp.gradient(x)\n", "use numpy.gradient"),
        ("import mxnet as mx\nmx.kv.create('p3')\n", "take dist_sync"),
        ("import mxnet as mx\nassert mx.__version__ > '1.6'\n", "that of mpgluon"),
        ("from mxnet import gluon\ngluon.model_zoo.vision.get_model('x', no=1)\n", ""),
        ("from mxnet import gluon\ngluon.loss.L2Loss(weight=1)\n", ""),
        ("from mxnet import gluon\ngluon.nn.Dense(3, bias=False)\n", "did you mean 'use_bias'?"),
        ("import time\ntime.clock()\n", "perf_counter"),
        ("from collections import Iterable\n", "collections.abc.Iterable"),
        ("import mxnet as mx\nmx.nd.zeros_like(x, dtype='a')\n", "ignores it with a warning"),
        ("import mxnet as mx\nmx.nd.relu6(x)\n", "has no attribute"),
        ("import mxnet as mx\nmx.nd.softmax(x, axes=1)\n", "did you mean 'axis'?"),
        ("def f(t):\n    t.load_states('f')\n", "by parameter name"),
        ("def f(p):\n    p.get('w', grad_stype='row_sparse')\n", "the rows that were taken"),
        ("def f(i):\n    i.get('w')\n", ""),
        ("import mxnet as mx\nmx.nd.save('a.npz', [])\n", "the format of the name"),
    ],
)
def test_port_reports_the_expected_finding(tmp_path, text, said):
    (report,) = port.read([program(tmp_path / "a.py", text)])
    texts = [f"{one.kind} {one.text}" for one in report.findings if one.kind != "runs"]
    assert any(said in one for one in texts) if said else not {"missing"} & set(report.kinds)
    assert "error" not in report.kinds


def test_names_of_mxnet_modules_are_missing_even_after_as_mxnet(tmp_path, monkeypatch):
    """An import of mxnet gives modules here names that MXNet's modules have only by import."""
    monkeypatch.setattr(gluon.loss, "ndarray", nd, raising=False)
    _package.lookup.cache_clear()
    (report,) = port.read([program(tmp_path / "a.py", "from mxnet.gluon.loss import ndarray\n")])
    assert any("import it from mpgluon" in one.text for one in report.findings)


def test_ambiguous_imports_are_not_rewritten(tmp_path):
    text = "from mxnet import no_such_name\nfrom  mxnet \\\n    import nd\n"
    text += "from \\\n  mxnet import nd\n"
    path = tmp_path / "a.py"
    (report,) = port.read([program(path, text)], write=True)
    assert path.read_text() == text.replace("from  mxnet", "from  mpgluon")
    assert len([one for one in report.findings if "--write does not" in one.text]) == 2


TRAINERS = """\
    from mxnet import autograd, gluon
    one = gluon.Trainer(first.collect_params(), "sgd", {"learning_rate": 0.1})
    two = gluon.Trainer(second.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in data:
        with autograd.record():
            h = first(x)
            loss = criterion(second(h.as_in_context(ctx)), y)
        loss.backward()
        one.step(32)
        two.step(32)
"""


def one_block(tmp_path, text):
    (report,) = port.read([program(tmp_path / "a.py", text)])
    return {one.line: one.text for one in report.findings if one.kind == "one block"}


def test_port_suggests_merging_trainers(tmp_path):
    said = one_block(tmp_path, TRAINERS)
    assert set(said) == {7, 9}
    merged = "gluon.Trainer({**first.collect_params(), **second.collect_params()}, ...)"
    assert merged in said[9] and "HybridBlock" in said[7]
    nets = {"first": gluon.nn.Dense(2, in_units=2), "second": gluon.nn.Dense(2, in_units=2)}
    for net in nets.values():
        net.initialize()
    trainer = eval(merged.replace("...", "'sgd'"), {"gluon": gluon, **nets})
    assert "parameters: 4" in repr(trainer)

    other = TRAINERS.replace(
        'two = gluon.Trainer(second.collect_params(), "sgd"',
        'two = gluon.Trainer(second.collect_params(), "adam"',
    )
    assert "if they have the same optimizer" in one_block(tmp_path, other)[9]
    # Trainers of a GAN step separately
    apart = TRAINERS.replace("two.step", "other.backward()\n        two.step")
    assert set(one_block(tmp_path, apart)) == {7}
    listed = """\
        from mxnet import gluon
        trainers = [gluon.Trainer(net.collect_params(), "sgd") for net in nets]
        for trainer in trainers:
            trainer.step(1)
        out.backward(h.grad.as_in_context(ctx))
        module = M(net, group2ctxs={"dev1": ctx})
    """
    assert set(one_block(tmp_path, listed)) == {3, 5, 6}
    filled = """\
        from mxnet import gluon
        trainers = []
        for net in nets:
            trainers.append(gluon.Trainer(net.collect_params(), "sgd"))
        for trainer in trainers:
            trainer.step(1)
        [trainer.step(1) for trainer in trainers]
        [trainer.learning_rate for trainer in trainers]
    """
    assert set(one_block(tmp_path, filled)) == {5, 7}


def notebook(path, *cells, indent=1):
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": c} for c in cells]
    text = {"cells": [{"cell_type": "markdown", "source": ["# é"]}, *cells], "nbformat": 4}
    path.write_text(json.dumps(text, indent=indent, ensure_ascii=False), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("indent", [1, None, 3])
def test_port_reads_and_writes_notebooks(tmp_path, indent):
    cells = [
        ["%matplotlib inline\n", "import mxnet as mx  # é\n", "!ls\n", "mx.nd.ones?"],
        "from mxnet import nd\nmx.nd.no_such_op()",
        ["print mx.nd"],
        ["%%bash\n", "import mxnet"],
        ["print('%d'\n", "      % (1))"],
    ]
    path = tmp_path / "a.ipynb"
    notebook(path, *cells, indent=indent)
    before = path.read_text(encoding="utf-8")
    (report,) = port.read([str(path)], write=True)
    problems = [(one.cell, one.line) for one in report.findings if one.kind == "error"]
    assert problems == [(4, 1)] and report.unreadable
    missing = [(one.cell, one.line) for one in report.findings if one.kind == "missing"]
    assert missing == [(3, 2)]
    after = before.replace("import mxnet as mx", "import mpgluon as mx")
    assert path.read_text(encoding="utf-8") == after.replace("from mxnet", "from mpgluon")
    assert not port.read([str(path)], write=True)[0].written


def test_unreadable_files_are_reported_and_others_are_read(tmp_path):
    program(tmp_path / "good.py", "import mxnet as mx\n")
    program(tmp_path / "old.py", "import mxnet as mx\nprint 'old'\n")
    program(tmp_path / "wrong.py", "import mxnet as mx\ndef f(:\n")
    program(tmp_path / "deep.py", "x = " + "(" * 5000 + ")" * 5000 + "\n")
    program(tmp_path / "wide.py", "import mxnet as mx\nx = " + "a." * 50000 + "b\n")
    (tmp_path / "binary.py").write_bytes(b"import mxnet\0")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "coding.py").write_bytes(b"# coding: no-such-coding\n")
    (tmp_path / "broken.ipynb").write_text("{")
    (tmp_path / "list.ipynb").write_text("[]")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "twice.py").symlink_to(tmp_path / "good.py")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    reports = {os.path.basename(one.path): one for one in port.read([str(tmp_path)])}
    said = {
        name: next(one for one in report.findings if one.kind == "error")
        for name, report in reports.items()
        if report.unreadable
    }
    assert not reports["good.py"].unreadable and "twice.py" not in reports
    assert said["old.py"].line == 2 and "Python 2 (a print statement)" in said["old.py"].text
    assert said["wrong.py"].line == 2 and "syntax error" in said["wrong.py"].text
    for name, text in {
        "deep.py": "nested",
        "wide.py": "nested",
        "binary.py": "binary",
        "latin.py": "decoded",
        "coding.py": "no-such-coding",
        "broken.ipynb": "not a notebook",
        "list.ipynb": "no cells",
        "loop.py": "symbolic links",
        "pipe.py": "not a regular file",
    }.items():
        assert text in said.pop(name).text, name
    assert set(said) == {"old.py", "wrong.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read all files")
def test_files_without_permission_are_reported(tmp_path):
    path = tmp_path / "a.py"
    program(path)
    path.chmod(0)
    assert "Permission denied" in port.read([str(path)])[0].findings[0].text


def test_failed_write_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    text = pathlib.Path(program(path)).read_text(encoding="utf-8")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    (report,) = port.read([str(path)], write=True)
    assert report.unreadable and "No space left" in report.findings[-1].text
    assert path.read_text(encoding="utf-8") == text and os.listdir(tmp_path) == ["a.py"]


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mpgluon.port", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )


@pytest.mark.slow
def test_port_command_prints_reports_and_exit_status(tmp_path):
    program(tmp_path / "good.py", "import mxnet as mx\nmx.nd.ones(1)\n")
    done = command(tmp_path, "--all")
    assert done.returncode == 0 and not done.stderr
    assert "good.py: 2 lines use MXNet, 1 of them run as they are" in done.stdout
    assert "import     mxnet -> mpgluon" in done.stdout and "runs       mx.nd.ones" in done.stdout
    assert "1 file, 1 of which use MXNet; 1 of these need nothing but imports" in done.stdout
    program(tmp_path / "bad.py", "import mxnet as mx\nmx.nd.no_such_op(1)\n")
    done = command(tmp_path, "--json")
    (bad, good) = json.loads(done.stdout)
    assert done.returncode == 1 and good["lines_that_run"] == 1
    assert [one["kind"] for one in bad["findings"]] == ["import", "missing"]
    for options in ((), ("--json",)):
        reader, writer = os.pipe()
        os.close(reader)  # as `head` does after enough lines
        line = [sys.executable, "-m", "mpgluon.port", str(tmp_path), *options]
        done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, env=environment())
        os.close(writer)
        assert done.returncode == 1 and not done.stderr
    assert command().returncode == command(tmp_path, "--cpu").returncode == 2
    assert command(tmp_path / "none").returncode == 1


def test_saving_under_a_variable_name_needs_only_imports(tmp_path):
    text = "import mxnet as mx\nmx.nd.save('both.params', [])\nkv = mx.kv.create(name)\n"
    (report,) = port.read([program(tmp_path / "a.py", text)])
    assert set(report.kinds) == {"import", "runs"}


def test_porting_rows_are_parsed_to_patterns():
    assert _rows.pattern_of("nn.BatchNorm(scale=False)").options == (("scale", False),)
    assert _rows.pattern_of("random.normal(0, -1)").given == ((0, 0), (1, -1))
    assert _rows.pattern_of("pretrained=True").path == ()
    assert _rows.pattern_of("x[True] = value") is None and _rows.pattern_of(".states") is None
    rows = {row.where: row for row in _rows.rows()}
    assert len(rows) > 150 and not any("<!--" in where for where in rows)
    # Words next to a name state a condition that is not visible in source code
    assert not rows["`norm` of integers (`[5, 3, 4]`, whose norm is 7.07)"].patterns
    assert rows["states of `Trainer`"].patterns[0].path == ("Trainer", "save_states")
    assert {"gluoncv", "gluonnlp", "sockeye"} <= _rows.packages()


def test_patterns_of_porting_rows_name_existing_names():
    """Each pattern of docs/porting.md ends with a name of the package or of one of its classes."""
    spaces = [("nd",), ("gluon",), ("gluon", "nn"), ("gluon", "data"), ("io",), ("test_utils",)]
    spaces += [("module",), ("contrib",), (), ("nd", "contrib"), ("gluon", "contrib", "estimator")]
    for line in _rows.page().splitlines():
        if "<!-- port:" not in line:
            continue
        for pattern in _rows.rows():
            if pattern.where == line[2:].split(" <!--")[0]:
                for one in pattern.patterns:
                    known = [_package.lookup((*space, *one.path)) for space in spaces]
                    assert any(isinstance(it, _package.Found) for it in known), one


def test_every_finding_kind_is_documented(tmp_path):
    reports = port.read([program(tmp_path / "a.py"), str(tmp_path / "none")])
    assert {one.kind for report in reports for one in report.findings} <= set(port.KINDS)

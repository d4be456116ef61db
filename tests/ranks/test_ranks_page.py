"""The programs of docs/parallel/ranks.md run under mpirun, with the bits of one process."""

import os
import re

import launching
import pytest

from support.paths import ROOT

PAGE = os.path.join(ROOT, "docs", "parallel", "ranks.md")
if not os.path.isfile(PAGE):
    pytest.skip("the docs are not here", allow_module_level=True)

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))


def programs():
    with open(PAGE, encoding="utf-8") as page:
        return re.findall(r"^```python\n(.*?)^```$", page.read(), re.M | re.S)


def output(count, path):
    done = launching.run(count, str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_network_over_ranks_has_the_bits_of_one_process(tmp_path):
    over_ranks, _ = programs()
    (tmp_path / "train.py").write_text(over_ranks)
    one = over_ranks.replace("mx.cpu(0, rank=0), mx.cpu(0, rank=1)", "mx.cpu(0), mx.cpu(1)")
    (tmp_path / "one.py").write_text(one)
    (value,) = output(2, tmp_path / "train.py")
    assert one != over_ranks and [value] == output(1, tmp_path / "one.py")


def test_copies_on_ranks_train_on_parts_of_the_data(tmp_path):
    _, copies = programs()
    (tmp_path / "copies.py").write_text(copies)
    ranks = sorted(line.split() for line in output(2, tmp_path / "copies.py"))
    assert [rank for rank, _ in ranks] == ["0", "1"] and len({loss for _, loss in ranks}) == 2

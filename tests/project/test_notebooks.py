"""The stored notebooks; ``make notebooks-check`` executes them."""

import glob
import json
import os
import re

import pytest

from support.paths import ROOT

NOTEBOOKS = sorted(glob.glob(os.path.join(ROOT, "notebooks", "*.ipynb")))
if not NOTEBOOKS:
    pytest.skip("the notebooks are not here", allow_module_level=True)

# Folders of the machine that executed the notebooks
MACHINE = r"(?<![\w.])/(tmp|home|root|usr|work|opt|var|mnt)/"


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def code_cells(notebook, tag=None):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in cells if tag is None or tag in cell["metadata"].get("tags", [])]


@pytest.fixture(params=NOTEBOOKS, ids=os.path.basename)
def path(request):
    return request.param


def test_stored_cells_were_executed_in_order_without_errors(path):
    """Execution counts rise from the first cell to the last, without error output."""
    cells = code_cells(read(path))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) > 3
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_notebooks_are_small(path):
    assert os.path.getsize(path) < 150_000


def test_notebooks_contain_no_machine_folders(path):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r'"image/png": ".*"', "", file.read())
    assert not re.findall(MACHINE, text)


def test_notebooks_name_devices_in_the_first_cell_only(path):
    """Except for programs in files that a cell writes."""
    first, *others = code_cells(read(path))
    others = [cell for cell in others if not cell["source"][0].startswith("%%writefile")]
    assert first["metadata"]["tags"] == ["devices"]
    assert re.search(r"mx\.cpu\(.*# on (a GPU|GPUs): .*mx\.gpu\(", "".join(first["source"]))
    for cell in others:
        assert not re.search(r"mx\.[cg]pu\(", "".join(cell["source"])), "".join(cell["source"])


def test_notebooks_have_about_ten_lines_to_copy(path):
    """These lines are under a separate heading."""
    notebook = read(path)
    (cell,) = code_cells(notebook, "ten-lines")
    lines = [line for line in "".join(cell["source"]).splitlines() if line.strip()]
    assert 5 <= len(lines) <= 12, len(lines)
    above = notebook["cells"][notebook["cells"].index(cell) - 1]
    assert above["cell_type"] == "markdown"
    assert "".join(above["source"]).startswith("## The ten lines")

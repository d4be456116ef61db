"""Executes the notebooks and stores them with their outputs: ``make notebooks``.

    python tools/notebooks.py                    # all of notebooks/
    python tools/notebooks.py notebooks/01*.ipynb

Needs nbclient, nbformat, matplotlib and Pillow. Machine-dependent data is removed: execution counts
stay, cell times and the kernel's version do not. Images are stored with a palette of 64 colors, in
a third of the bytes.
"""

import base64
import io
import os
import re
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "notebooks")


def smaller(png: str) -> str:
    """Converts a base64 PNG to a palette."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    out = io.BytesIO()
    picture.quantize(64, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def joined(outputs):
    """Merges consecutive outputs of one stream; reduces progress bars to their last state."""
    result = []
    for output in outputs:
        if output.output_type == "stream":
            last = result[-1] if result else None
            if last and last.output_type == "stream" and last.name == output.name:
                last.text += output.text
                continue
        result.append(output)
    for output in result:
        if output.output_type == "stream":
            text = output.text.replace("\r\n", "\n")  # `!` lines run in a terminal
            output.text = re.sub(r"^[^\n]*\r", "", text, flags=re.M)
            output.text = re.sub(r"/\S*ipykernel_\d+/\d+\.py", "<cell>", output.text)
    return result


def execute(path: str) -> float:
    """Executes a notebook in an empty folder and stores it; returns the seconds."""
    notebook = nbformat.read(path, 4)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}})
        client.execute()
    seconds = time.perf_counter() - begin
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata.language_info = {"name": "python", "pygments_lexer": "ipython3"}
    nbformat.write(notebook, path)
    return seconds


def main() -> None:
    paths = sys.argv[1:] or sorted(
        os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".ipynb")
    )
    for path in paths:
        print(f"{execute(path):6.1f} s  {os.path.getsize(path) / 1000:6.0f} KB  {path}", flush=True)


if __name__ == "__main__":
    main()

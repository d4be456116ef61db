"""The site: ``make site``. Its sources are docs/ and notebooks/, read where they are."""

import base64
import glob
import importlib.metadata
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import nbformat  # noqa: E402
from ipython_pygments_lexers import IPython3Lexer  # noqa: E402
from pygments.lexer import bygroups, using  # noqa: E402
from pygments.lexers.c_cpp import CppLexer  # noqa: E402
from pygments.token import Operator  # noqa: E402

import mpgluon  # noqa: E402

project = "mpgluon"
author = "The mpgluon authors"
version = release = mpgluon.__version__
root_doc = "docs/index"
include_patterns = ["docs/**.md", "docs/api/generated/*.rst", "notebooks/*.ipynb"]
exclude_patterns = ["build", ".venv*", ".git", "tests", "csrc", "kernels", "mpgluon"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # writes docs/api/generated, a page for each class
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "function_tables",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tools/notebooks.py executes them, and CI does
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings have types, shapes and units
autodoc_preserve_defaults = True
add_module_names = False
default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = False
napoleon_use_ivar = True

# Names that several classes have, in the types of parameters.
suppress_warnings = ["ref.python"]

html_theme = "pydata_sphinx_theme"
html_title = f"mpgluon {version}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = [os.path.join(ROOT, "docs", "_templates")]  # absolute for autosummary as well
html_copy_source = False
html_show_sourcelink = False
# The address of the repository, once `urls` in pyproject.toml has one under this name.
ENTRIES = importlib.metadata.metadata(project).get_all("Project-URL") or ()
URLS = dict(entry.split(", ", 1) for entry in ENTRIES)
REPOSITORY = URLS.get("Repository")
html_theme_options = {
    "logo": {"text": html_title},
    "icon_links": [
        {"name": "Repository", "url": REPOSITORY, "icon": "fa-solid fa-code-branch"},
    ]
    if REPOSITORY
    else [],
    "collapse_navigation": True,  # only the current section's pages
    "show_toc_level": 2,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "use_edit_page_button": False,
    "pygments_light_style": "tango",
}
# Pages without others below them have nothing to show in the left column.
html_sidebars = dict.fromkeys(
    ("docs/index", "docs/install", "docs/quickstart", "genindex", "py-modindex", "search"), []
)
copyright = "mpgluon's authors, Apache License 2.0"


class CellLexer(IPython3Lexer):
    """Cells of notebooks; those that write a file of C or CUDA are C."""

    name = "Cells"
    tokens = {
        **IPython3Lexer.tokens,
        "root": [
            (r"(?s)(%%writefile +\S+\.(?:c|cu)\n)(.*)", bygroups(Operator, using(CppLexer))),
            *IPython3Lexer.tokens["root"],
        ],
    }


def write_figures(app):
    """Writes the largest figure of each notebook, for its card on docs/notebooks.md."""
    for path in glob.glob(os.path.join(ROOT, "notebooks", "*.ipynb")):
        figures = [
            output.data["image/png"]
            for cell in nbformat.read(path, 4).cells
            for output in cell.get("outputs", ())
            if "image/png" in output.get("data", {})
        ]
        if figures:
            name = os.path.basename(path).replace(".ipynb", ".png")
            with open(os.path.join(ROOT, "docs", "_static", "notebooks", name), "wb") as file:
                file.write(base64.b64decode(max(figures, key=len)))


def name_repository(app, page, source):
    """Replaces the placeholder in the installation commands."""
    if REPOSITORY:
        source[0] = source[0].replace("git clone ADDRESS", f"git clone {REPOSITORY}")


def setup(app):
    app.add_lexer("ipython3", CellLexer)
    app.connect("builder-inited", write_figures, priority=1)
    app.connect("source-read", name_repository)

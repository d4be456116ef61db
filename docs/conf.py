"""The site: ``make site``. Its sources are docs/ and notebooks/, read where they are."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))

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
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = [os.path.join(ROOT, "docs", "_templates")]  # absolute for autosummary as well
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "use_edit_page_button": False,
    "pygments_light_style": "tango",
}
html_sidebars = {"docs/index": []}
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


def setup(app):
    app.add_lexer("ipython3", CellLexer)

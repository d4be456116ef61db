"""Sphinx extension with the directive ``functions``: a table of functions, then their text."""

from sphinx.ext.autosummary import Autosummary


class Functions(Autosummary):
    """Names relative to the current module, one per line, as for ``autosummary``."""

    def run(self):
        text = ""
        for name in filter(None, map(str.strip, self.content)):
            module, _, name = f"{self.env.ref_context['py:module']}.{name}".rpartition(".")
            text += f".. autofunction:: {module}::{name}\n\n"
        self.options["nosignatures"] = None
        return super().run() + self.parse_text_to_nodes(text)


def setup(app):
    app.setup_extension("sphinx.ext.autosummary")
    app.add_directive("functions", Functions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

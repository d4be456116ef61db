"""Graphviz graphs that are drawn as SVG by mpgluon if the program ``dot`` is missing."""

from __future__ import annotations

import os
import shutil
from typing import Any

from graphviz import Digraph

from ..base import MXNetError
from ._drawing import Drawing


class NetworkGraph(Digraph):
    """A `graphviz.Digraph` with a `drawing`, the fallback if the program ``dot`` is missing."""

    drawing: Drawing

    def _without_dot(self, format):
        """Returns True if the program ``dot`` is missing. In this case, raises MXNetError unless
        the format is SVG."""
        if shutil.which(self.engine) is not None:
            return False
        wanted = format or self.format
        if wanted != "svg":
            raise MXNetError(
                f"plot_network: {wanted} needs Graphviz's program {self.engine}, which is not "
                "installed (apt install graphviz); SVG works without it: "
                "plot.drawing.save('plot.svg'), or plot_network(..., save_format='svg')"
            )
        return True

    def pipe(self, format: str | None = None, *args: Any, **options: Any) -> Any:
        """Returns the drawing as bytes, or as text if an encoding is given; see Graphviz."""
        if not self._without_dot(format):
            return super().pipe(format, *args, **options)
        text = self.drawing.svg()
        encoding = options.get("encoding")
        return text if encoding else text.encode("utf-8")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **more: Any) -> Any:
        """Returns the drawing for notebooks: SVG, regardless of the file format."""
        if shutil.which(self.engine) is not None:
            return super()._repr_mimebundle_(include, exclude, **more)
        wanted = {"image/svg+xml"} if include is None else set(include)
        shown = "image/svg+xml" in wanted - set(exclude or ())
        return {"image/svg+xml": self.drawing.svg()} if shown else {}

    def render(
        self, filename: Any = None, directory: Any = None, *args: Any, **options: Any
    ) -> str:
        """Writes the drawing to a file and returns its name; see Graphviz."""
        if not self._without_dot(options.get("format")):
            return super().render(filename, directory, *args, **options)
        outfile = options.get("outfile")
        if outfile is None:
            source = self.save(filename, directory=directory)
            outfile = f"{source}.svg"
            if options.get("cleanup"):
                os.remove(source)
        self.drawing.save(outfile)
        return str(outfile)

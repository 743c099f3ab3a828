"""How Sphinx makes a site of these pages: `make docs`."""

import re
from typing import Any

from ppga.version import __version__

project = "ppga"
author = "the authors of ppga"
version = release = __version__
html_title = f"ppga {__version__}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
exclude_patterns = ["_build"]
highlight_language = "text"  # of blocks that do not name theirs: commands, for the most part

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3  # named as GitHub names them, so that links work there and here

default_role = "code"  # docstrings quote code as Markdown does
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # fields are described once, by their class
python_maximum_signature_line_length = 88


def _plain(*event: Any) -> tuple[str | None, str | None]:
    """A signature without what types say to the command line alone."""
    signature, returns = event[-2:]
    return signature and re.sub(r"Annotated\[(.*?), _ArgConfig\(.*?\)\]", r"\1", signature), returns


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", _plain)

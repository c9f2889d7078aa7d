"""The documentation site: `make docs` builds it into build/docs, where it opens without a server or a network."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER / "extensions"), str(FOLDER.parent / "src"), str(FOLDER.parent / "benchmarks")]

import widthwise  # noqa: E402

project = "widthwise"
author = "the authors of widthwise"
copyright = "Apache-2.0"
version = release = widthwise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "evidence", "outside", "signatures", "verbs"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["extensions", "static", "pictures", "templates"]
templates_path = ["templates"]

myst_heading_anchors = 4  # links to #headings are checked, as GitHub names them
myst_enable_extensions = ["colon_fence", "deflist"]
highlight_language = "none"  # blocks without a language are output or formulas
smartquotes = False  # options begin with two hyphens
default_role = "code"  # docstrings write `name`, as the pages do

nitpicky = True
# Types in signatures are torch's, pydantic's and our internal ones: they have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}

html_theme = "furo"
html_title = f"widthwise {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(FOLDER / "templates" / "search.js")
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

"""How Sphinx makes the book: `make docs` writes it to out/docs. Nothing in it is loaded from elsewhere."""

import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "Regard"
author = "the Regard maintainers"
extensions = ["myst_nb", "book"]
exclude_patterns = ["reference/_*", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = "Regard: a workbench for attention"
html_show_sphinx = html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"
html_static_path, html_css_files = ["_static"], ["book.css"]

myst_enable_extensions = ["dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = True


def _code():
    """A name for the code as it is: what cells gave with another one does not count."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "src" / "regard").rglob("*.*")):
        if path.suffix in (".py", ".toml", ".md", ".js"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Cells are executed when their chapter, or the code, has changed; one that fails, fails the book.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent.parent / "out" / "docs-cache" / _code())
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # they would come from a CDN
suppress_warnings = ["mystnb.unknown_mime_type"]

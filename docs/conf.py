"""The site: `make docs` builds it from this folder into site/html, and every warning is an error.

Nothing is fetched, neither when it is built nor when it is read: no fonts or scripts of others.
The pages are also read as they are, on a code host, so their links go to files of the repository.
A link to a page of the repository's root goes to its page here; one to any other file outside of
docs/ becomes a copy of that file. Tables that follow from stored results, or from the code, are
made here and stand in no file.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

project = "LOCKS"
author = "the authors of LOCKS"
release = metadata.version("locks-fl")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"LOCKS {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
templates_path: list[str] = []
exclude_patterns = ["_build", "_static"]
highlight_language = "text"

myst_heading_anchors = 4
nb_execution_mode = "off"  # a test executes the notebooks; the site shows their stored outputs
suppress_warnings = ["misc.highlighting_failure"]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
default_role = "code"  # docstrings have Markdown's backticks
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# The API page: every public name, in the order in which one meets them. A test compares this with
# locksfl.__all__. Of the classes in the last group only the text is shown.
API = {
    "Train": ["train", "train_many", "Trained"],
    "Data": ["Population", "from_table", "Task"],
    "Models": ["load", "Fitted", "LocksClassifier"],
    "Privacy": ["calibrate", "account", "Cost"],
    "Settings": ["LocalConfig", "OptimizerConfig", "Arm", "Model"],
}
NO_MEMBERS = {"Arm", "Model", "Cost", "LocalConfig", "OptimizerConfig"}

# (scikit-learn's own methods refer to its own pages)
MEMBERS = "   :members:\n   :exclude-members: set_fit_request, set_score_request\n"

# The navigation. A name before <...> is what users look for; the others are the pages' own.
NAVIGATION = {
    "Start": ["quick-start", "concepts", "notebooks/compare-rules", "notebooks/own-table", "faq"],
    "Guides": [
        "The program: commands, settings <program>",
        "Your own data <data>",
        "Your own model <models>",
        "Your own rule: methods <methods>",
        "The Python library <library>",
        "Federation and trust <federation>",
    ],
    "Privacy": ["privacy", "verify", "sharp-edges", "Accounting <accounting>", "audit"],
    "Methods and theory": ["The method <method>", "theory", "errata"],
    "Results": [
        "results",
        "All results <results-tables>",
        "The paper's experiment <reproduction/report>",
        "performance",
    ],
    "Reference": ["api", "comparison", "benchmarks", "contributing", "changelog"],
}

# Pages elsewhere in the repository that the site shows in place of a stub of this name.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "benchmarks/README.md": "benchmarks",
}


def navigation() -> str:
    """What is below the text of docs/index.md."""
    trees = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *pages, "```"])
        for group, pages in NAVIGATION.items()
    ]
    return "\n\n" + "\n\n".join(trees) + "\n"


def at_home(file: str) -> str:
    """A page from elsewhere, its links as seen from docs/."""

    def moved(link: re.Match[str]) -> str:
        target = os.path.relpath(ROOT / Path(file).parent / link[1], ROOT / "docs")
        return f"]({target}"

    return re.sub(r"\]\((?![a-z]+:|#)([^)#]*)", moved, (ROOT / file).read_text("utf-8"))


def read_page(app: Any, name: str, source: list[str]) -> None:
    """What is made here in its page, and links to pages from elsewhere turned to the site's."""
    del app
    added = {
        "index": navigation,
        "api": api_page,
        "results-tables": all_results,
        "methods": costs,
        "audit": faults,
    }
    for file, page in OUTSIDE.items():
        if name == page:
            source[0] = at_home(file)
    if name == "reproduction/report":
        source[0] = reproduction()
    if name in added:
        source[0] += added[name]()
    for file, page in OUTSIDE.items():
        source[0] = source[0].replace(f"](../{file}", f"]({page}.md")
    if name in ("comparison", "sharp-edges"):  # threads, which a code host links by itself
        source[0] = re.sub(
            r"\b([\w-]+/[\w-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", source[0]
        )


def api_page() -> str:
    """What is below the introduction of docs/api.md: docstrings."""
    lines = []
    for group, names in API.items():
        lines.append(f"\n## {group}\n")
        for name in names:
            kind = "autoclass" if name[0].isupper() else "autofunction"
            members = "" if kind == "autofunction" or name in NO_MEMBERS else MEMBERS
            lines.append(f"```{{eval-rst}}\n.. {kind}:: locksfl.{name}\n{members}```\n")
    return "\n".join(lines)


def all_results() -> str:
    """What is below the introduction of docs/results-tables.md, from docs/results."""
    sys.path.insert(0, str(ROOT))
    from scripts.make_results import appendix

    return "\n" + appendix()


def costs() -> str:
    """What is below docs/methods.md, from what the methods state."""
    sys.path.insert(0, str(ROOT))
    from scripts.make_methods import costs_and_proofs

    return "\n" + costs_and_proofs()


def reproduction() -> str:
    """docs/reproduction/report.md in full, from the table beside it."""
    sys.path.insert(0, str(ROOT))
    from scripts.reproduction_report import report

    return report()


def faults() -> str:
    """What is below the last section of docs/audit.md, from tests/audit_faults.py."""
    sys.path.insert(0, str(ROOT / "tests"))
    from audit_faults import table

    return "\n" + table()


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", read_page)

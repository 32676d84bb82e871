"""The site of docs/: built without warnings, links that lead somewhere, notebooks that run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbclient import NotebookClient

import locksfl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    flags = ("-q", "-E", "-W", "--keep-going", "-b", "html")
    run = [sys.executable, "-m", "sphinx", *flags, str(source), str(out)]
    return subprocess.run(run, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "html"
    built = build(DOCS, out)
    assert built.returncode == 0, built.stderr
    return out


class Reader(HTMLParser):
    """What a page links to, fetches, and can be linked at."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in given}
        self.anchors.update(told[name] for name in ("id", "name") if name in told)
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        if tag in ("img", "script", "iframe") and "src" in told:
            self.fetched.append(told["src"])
        if tag == "link" and told.get("rel") != "canonical":
            self.fetched.append(told["href"])


def broken(site: Path) -> list[str]:
    """Links, pictures, styles and scripts that are not there, and anchors that are nowhere."""
    pages = {path: Reader(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            if re.match(r"https?:|mailto:", link):
                if link in page.fetched:
                    found.append(f"{path.name}: fetches {link}")
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file.split("?")[0])).resolve() if file else path
            lost = anchor and target in pages and unquote(anchor) not in pages[target].anchors
            if lost or not target.is_file():
                found.append(f"{path.name}: {link}")
    return found


def test_no_link_is_broken_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) >= 25
    assert broken(site) == []


@pytest.mark.parametrize(
    "planted",
    ['<a href="gone.html">', '<a href="privacy.html#gone">', '<a href="#gone">',
     '<img src="gone.png">', '<script src="https://example.org/x.js">'],
)  # fmt: skip
def test_a_broken_link_is_found(tmp_path: Path, planted: str) -> None:
    for name in ("index.html", "privacy.html"):
        (tmp_path / name).write_text("<html>", "utf-8")
    assert broken(tmp_path) == []
    (tmp_path / "index.html").write_text(f"<html>{planted}", "utf-8")
    assert len(broken(tmp_path)) == 1


def test_the_tables_that_the_build_makes_are_there(site: Path) -> None:
    """Found alone here: a page that was renamed, and has lost what stands in no file."""
    from scripts.make_results import APPENDIX

    from audit_faults import FAULTS

    wanted = {
        "results-tables.html": [table.title for table in APPENDIX],
        "audit.html": [fault.test.split("::")[1] for fault in FAULTS],
        "methods.html": ["costs and proofs", "anchors (SVRG"],
        "reproduction/report.html": ["Conclusion", "clients add it, 100 uploads"],
    }
    for name, texts in wanted.items():
        text = unescape(re.sub(r"<[^>]*>", "", (site / name).read_text("utf-8")))
        text = text.replace("’", "'")
        assert [one for one in texts if one.replace("`", "") not in text] == [], name


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = Reader(site / "index.html")
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    unlisted = {page for page in pages if page not in {link.split("#")[0] for link in home.links}}
    assert unlisted <= {"index.html", "genindex.html", "search.html", "py-modindex.html"}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = Reader(site / "api.html").anchors
    assert {f"locksfl.{name}" for name in locksfl.__all__} <= anchors


def test_a_warning_ends_the_build(tmp_path: Path) -> None:
    shutil.copy(DOCS / "conf.py", tmp_path / "conf.py")
    text = "# Home\n\n[there](nowhere.md#at-all)\n"
    (tmp_path / "planted.md").write_text(text)
    settings = (tmp_path / "conf.py").read_text("utf-8").replace('"index": navigation, ', "")
    (tmp_path / "conf.py").write_text(settings + '\nroot_doc = "planted"\nhtml_static_path = []\n')
    built = build(tmp_path, tmp_path / "out")
    assert built.returncode != 0
    assert "nowhere" in built.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_running_it_gave(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert shown
    assert len(path.read_bytes()) < 100_000
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [o.output_type for o in outputs] == [o.output_type for o in shown]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_there_are_two_notebooks() -> None:
    assert len(NOTEBOOKS) == 2

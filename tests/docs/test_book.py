"""The book: its chapters run, and hold every exercise, experiment and question; its pages load nothing."""

import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

import regard
from regard.checking.catalogue import ours
from regard.checking.quiz import questions
from regard.cli import main
from regard.lab.catalogue import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"
CHAPTERS = sorted((DOCS / "course").glob("[0-9]*.md"))
FIRST = DOCS / "course" / "03-scaled-dot-product.md"
TEXT = "\n".join(chapter.read_text(encoding="utf-8") for chapter in CHAPTERS)


def cells(chapter):
    """The code of a chapter, cell by cell."""
    code = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", chapter.read_text(encoding="utf-8"), re.M | re.S)
    return [re.sub(r"^:tags:.*\n", "", cell) for cell in code]


def execute(chapter, folder):
    """Run a chapter in a kernel, as the build does; the seconds it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells(chapter)])
    began = time.monotonic()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return time.monotonic() - began


def test_a_chapter_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    execute(FIRST, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [*CHAPTERS, DOCS / "examples.md"], ids=lambda path: path.stem)
def test_every_chapter_runs(chapter, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seconds = execute(chapter, tmp_path)
    print(f"{chapter.stem}: {seconds:.0f} s")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_has_all_its_parts(chapter):
    text = chapter.read_text(encoding="utf-8")
    assert re.search(r"^\*.+\?\*?$", text, re.M | re.S), "no question at its beginning"
    for part in ("to_html(|plt.", "%%check", "%lab", "%quiz", "## Read next", r"\|.*---"):
        assert re.search(part.replace("(", r"\("), text), f"without {part}"


def test_every_exercise_experiment_and_question_is_in_a_chapter():
    assert [id for id in ours() if not re.search(rf"`{id}`|%%check {id}\b|start {id}\b", TEXT)] == []
    labs = {line.replace("-", " ") for line in re.findall(r"^%lab ([\w -]+?)(?: --.*)?$", TEXT, re.M)}
    assert set(EXPERIMENTS) - labs == set()
    assert set(questions()) - set(re.findall(r"^%quiz ([\w-]+)", TEXT, re.M)) == set()


@pytest.fixture
def book(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import book

    return book


def test_the_reference_has_every_public_name_and_command(book):
    top = book._names("regard", regard.__all__, "Names")
    assert [name for name in regard.__all__ if f"\n## {name}\n" not in top] == []
    cells = "\n".join(book.CELL.findall((DOCS / "examples.md").read_text(encoding="utf-8")))
    assert [name for name in regard.__all__ if f"regard.{name}" not in cells and name != "show"] == []
    listed = book._commands()
    context = click.Context(main, info_name="regard")
    names = main.list_commands(context)
    assert len(names) > 10
    assert [name for name in names if f"\n## regard {name}\n" not in listed] == []


def test_a_signature_is_shown_as_it_is_written(book):
    assert book._signature("attend", regard.attend).startswith("attend(\n    q: Float")

    def made(a, *, b: int = 3, **c: str) -> "Float[Tensor, 'x']":
        pass

    assert book._signature("made", made) == "made(a, *, b: int = 3, **c: str) -> Float[Tensor, 'x']"


class Loads(HTMLParser):
    """What a page loads: scripts, styles, pictures, fonts."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video", "embed"):
            self.urls.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "modulepreload"):
            self.urls.append(given.get("href") or "")


@pytest.mark.slow
def test_the_book_builds_and_loads_nothing_from_elsewhere(tmp_path):
    """Warnings are errors; a second build, which executes nothing, says that links within hold."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path / "book")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    pages = sorted((tmp_path / "book").rglob("*.html"))
    assert len(pages) > len(CHAPTERS) + 15
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [url for url in loads.urls if "//" in url.split("?")[0]] == [], page.name
    notebooks = sorted(path.stem for path in (tmp_path / "book" / "course").glob("*.ipynb"))
    assert notebooks == [chapter.stem for chapter in CHAPTERS]

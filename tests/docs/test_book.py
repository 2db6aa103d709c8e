"""The book: its chapters run, and hold every exercise, experiment and question; its pages load nothing."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import regard
import regard.heads
from regard.checking.catalogue import ours
from regard.checking.quiz import questions
from regard.cli import main
from regard.lab.catalogue import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"
CHAPTERS = sorted((DOCS / "course").glob("[0-9]*.md"))
FIRST = DOCS / "course" / "03-scaled-dot-product.md"
TEXT = "\n".join(chapter.read_text(encoding="utf-8") for chapter in CHAPTERS)
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\n", re.M | re.S)


def cells(chapter):
    """The code of a chapter, cell by cell."""
    return [re.sub(r"^:tags:.*\n", "", cell) for cell in CELL.findall(chapter.read_text(encoding="utf-8"))]


def execute(chapter, folder):
    """Run a chapter in a kernel, as the build does; the seconds it took, and those of the processor."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells(chapter)])
    began, worked = time.monotonic(), cpu_seconds()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return time.monotonic() - began, cpu_seconds() - worked


def cpu_seconds():
    """Of all processes that were started here and have ended."""
    import resource  # not on Windows

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_chapter_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    execute(FIRST, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [*CHAPTERS, DOCS / "examples.md"], ids=lambda path: path.stem)
def test_every_chapter_runs(chapter, tmp_path, monkeypatch):
    """One after the other with `-n 0 -s` they say how long each takes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seconds, worked = execute(chapter, tmp_path)
    print(f"{chapter.stem}: {seconds:.0f} s, {worked:.0f} s of one core")


def parts(text):
    """The parts of a chapter, each with whether it is there."""
    _, question, _ = text.partition("\n---\n")[2].strip().split("\n\n", 2)  # below the title
    sections = dict(section.partition("\n")[::2] for section in text.split("\n## ")[1:])
    pieces = CELL.split(text)  # prose, cell, prose, cell, ...
    prose, code = pieces[::2], pieces[1::2]
    labs = [before for before, cell in zip(prose, code, strict=False) if "\n%lab " in f"\n{cell}"]
    hidden = [cell for cell in code if cell.startswith(":tags: [hide-output]\n%lab ")]
    drawn = ("to_html(", ".plot(", ".semilogy(", ".imshow(")
    return {
        "question": bool(re.fullmatch(r"\*[^*]+\?[^*]*\*", question)),
        "picture": any(
            call in cell for cell in CELL.findall(sections.get("Look first", "")) for call in drawn
        ),
        "formula": bool(re.search(r"^\$\$\n.+?\n\$\$$", text, re.M | re.S)),
        "shapes": bool(re.search(r"^\|.*\bshape\b.*\|\n\| ---", text, re.M)),
        "equal": any("regard" in text and re.search(r"torch\.(allclose|equal)\(", cell) for cell in code),
        "exercise": any(re.match(r"%%check [\w-]+ --seed 1\n", cell) for cell in code),
        "experiment": len(hidden) == len(labs) > 0 and all("?" in before for before in labs),
        "quiz": any(re.match(r"%quiz [\w-]+\n", cell) for cell in code),
        "reading": bool(re.search(r"^- [A-Z].+ \d{4}, \*.+\*", sections.get("Read next", ""), re.M)),
    }


# What somebody who cuts a chapter short would take away.
CUTS = {
    "question": (r"(?m)^(# .+\n\n)(?:.+\n)+", r"\1Some words.\n"),
    "picture": (r"(?m)^.*(to_html|plot|imshow|semilogy)\(.*\n", ""),
    "formula": (r"(?m)^\$\$\n", "\n"),
    "shapes": (r"(?m)^\|.*\n", ""),
    "equal": (r"(?m)^.*torch\.(allclose|equal)\(.*\n", ""),
    "exercise": (r"(?m)^%%check.*\n", ""),
    "experiment": (r"(?m)^:tags: \[hide-output\]\n", ""),
    "quiz": (r"(?m)^%quiz.*\n", ""),
    "reading": (r"(?ms)^## Read next\n.*", ""),
}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_has_all_its_parts(chapter):
    assert [part for part, there in parts(chapter.read_text(encoding="utf-8")).items() if not there] == []


@pytest.mark.parametrize("part", CUTS)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_without_a_part_is_found_out(chapter, part):
    cut = re.sub(*CUTS[part], chapter.read_text(encoding="utf-8"))
    assert [name for name, there in parts(cut).items() if not there] == [part]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_no_cell_is_longer_than_thirty_lines(chapter):
    assert [cell for cell in cells(chapter) if cell.count("\n") > 30] == []


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


def test_the_reference_has_every_public_name_with_an_example(book):
    """One that uses the name: what is only imported, or named in a comment, is no example."""
    _, cells = book.examples()
    used = [value for _, values in cells for value in values]
    for module in (regard, *book.packages()):
        page = book._names(module, module.__name__)
        sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
        assert [name for name in module.__all__ if name not in sections] == []
        named = [(name, getattr(module, name)) for name in module.__all__]
        assert [name for name, value in named if not any(value is one for one in used)] == [], module.__name__
        assert [name for name in module.__all__ if sections[name].count("```python") < 2] == []


def test_a_name_that_is_not_used_has_no_example(book):
    """Imports, comments and other things of that name do not count."""
    cell = "from regard.heads import label, measure\nmeasure(1)  # label\nx.label = trace = regard.trace"
    used = book._used(ast.parse(cell))
    assert any(value is regard.trace for value in used)
    assert not any(value is regard.heads.label for value in used)
    assert any(value is regard.heads.measure for value in used)


def test_every_package_of_the_reference_is_in_the_contents(book):
    contents = (DOCS / "index.md").read_text(encoding="utf-8")
    assert len(book.packages()) > 8
    assert [
        module.__name__ for module in book.packages() if f"reference/{module.__name__[7:]}\n" not in contents
    ] == []


@pytest.mark.slow
def test_every_example_runs_after_the_first_alone():
    """So it does where the reference shows it; and what it says of a type is so."""
    command = [sys.executable, str(Path(__file__).parent / "examples.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert " examples ran" in done.stdout


def test_the_teachers_page_has_every_exercise_once(book):
    """In the first chapter that names it, with the minutes of the path."""
    rows = [line.split(" | ") for line in book.chapters().splitlines() if line.startswith("| [")]
    assert len(rows) == len(CHAPTERS)
    listed = [id for row in rows for id in re.findall(r"`([\w-]+)`(?:\\\*)? \d+", row[1])]
    assert sorted(listed) == sorted(ours())
    assert "`masked-softmax`\\* 20" in rows[3][1]  # chapter 4, which shows a wrong answer to it


def test_the_reference_has_every_command(book):
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


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The book, built where no name of another machine can be looked up. Warnings are errors."""
    folder = tmp_path_factory.mktemp("book")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = build(DOCS, folder, {**os.environ, **nowhere})
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def build(source, folder, environment=None):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(source), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_every_chapter_can_be_had_as_a_notebook(built):
    notebooks = sorted(path.stem for path in (built / "course").glob("*.ipynb"))
    assert notebooks == [chapter.stem for chapter in CHAPTERS]


@pytest.mark.slow
def test_the_pages_load_nothing_from_elsewhere(built, browser):
    """Opened in a browser, formulas and moving pictures are there, and nobody was asked for anything."""
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > len(CHAPTERS) + 15
    asked = {page.name: asked_for(browser, page) for page in pages}
    assert {page: urls for page, urls in asked.items() if urls} == {}


@pytest.mark.slow
def test_a_page_that_loads_from_elsewhere_is_found_out(tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text(
        "<script>fetch('https://example.org/late.js').catch(() => 0)</script><img src=http://example.org/a.png>"
    )
    assert sorted(asked_for(browser, page)) == ["http://example.org/a.png", "https://example.org/late.js"]


def asked_for(browser, path):
    """What a page asks for of other machines; none of them answers."""
    context, urls = browser.new_context(), []
    context.route(
        re.compile("^(?!file:|data:|blob:)"), lambda route: (urls.append(route.request.url), route.abort())
    )
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    if path.stem in [chapter.stem for chapter in CHAPTERS]:
        assert page.locator("math").count() > 0
        assert all(frame.locator("canvas, svg").count() > 0 for frame in page.frames[1:])
    context.close()
    return urls


@pytest.mark.slow
def test_a_link_within_that_leads_nowhere_fails_the_book(tmp_path):
    (tmp_path / "conf.py").write_text(
        (DOCS / "conf.py").read_text().replace('"book"', "").replace('"mathml"', '"mathjax"')
    )
    page = tmp_path / "index.md"
    page.write_text("# A page\n\n[there](index.md#a-page)\n")
    assert build(tmp_path, tmp_path / "good").returncode == 0
    page.write_text("# A page\n\n[there](nowhere.md)\n")
    assert build(tmp_path, tmp_path / "bad").returncode != 0

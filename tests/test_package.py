"""The package as a whole: its public names, the direction of its imports, its wheel."""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import jaxtyping
import pytest
import torch

import regard
from regard.drawing.figures import heat_map

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"

# The layout of docs/ARCHITECTURE.md: packages lowest first, and the files of each lowest first.
LAYOUT = {
    package: re.findall(r"`(\w+)`", files)
    for package, files in re.findall(
        r"^\| `(\w+)(?:/|\.py)` \| ([^|]*)\|",
        (ROOT / "docs" / "ARCHITECTURE.md").read_text(),
        flags=re.MULTILINE,
    )
}
ORDER = list(LAYOUT)
# Content: any file of such a package stands beside the others, after those that are named.
BESIDE = {"lab", "exercises"}

MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path != SOURCE / "__init__.py"
)


def run(*command, **options):
    """The finished process, which must have succeeded."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done


def imported_modules(source, inside):
    """The modules of ours, as `package.file`, that a file imports at run time."""
    tree = ast.parse(source)
    for_types_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} of {inside}: write imports in full, from regard"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            # A public name imported from the package itself counts for the module it lives in.
            rest = regard._HOME.get(rest, rest)
            if top == "regard" and rest not in ("", "__version__"):
                yield rest


def place(module):
    """Where a module stands in the layout: the number of its package, and its own number there."""
    package, _, file = module.partition(".")
    if package not in ORDER:
        return None
    files, file = LAYOUT[package], file.partition(".")[0]
    return ORDER.index(package), files.index(file) if file in files else len(files)


def wrong_way(source, inside):
    """The imports that go up the layout, or out of it."""
    here = place(inside)
    return [
        module
        for module in imported_modules(source, inside)
        if (there := place(module)) is None or there > here or (there[0] > here[0])
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_those_below_it(module):
    """No file imports from one that the layout puts above it, nor stands outside the layout."""
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    assert wrong_way(path.read_text(), module) == []


def test_the_architecture_page_lists_every_file_once():
    """The table of docs/ARCHITECTURE.md is the layout as it is: each file once, none that is gone."""
    there = {module for module in MODULES if not module.endswith(".__init__")}
    listed = {f"{package}.{file}" for package, files in LAYOUT.items() for file in files}
    alone = {package for package, files in LAYOUT.items() if not files}
    assert listed | alone <= there | BESIDE
    assert {module for module in there - listed - alone if module.partition(".")[0] not in BESIDE} == set()
    assert all(len(files) == len(set(files)) for files in LAYOUT.values())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from regard.layers.norms import RMSNorm", ["layers.norms.RMSNorm"]),
        ("import regard.cli", ["cli"]),
        ("def late():\n    from regard import MultiHeadAttention", ["layers.attention"]),
        ("from regard import nowhere", ["nowhere"]),
        ("from regard.attention import linear", ["attention.linear"]),
        ("from regard.attention.scores import ScoreRule", []),
        ("from regard.errors import ShapeError\nfrom regard import __version__\nimport torch", []),
        ("if TYPE_CHECKING:\n    from regard.layers.norms import RMSNorm", []),
    ],
)
def test_the_import_check_finds_each_way_of_importing(source, found):
    """The check above fails on every form a wrong import can take, and on no right one."""
    assert wrong_way(source, "attention.softmax") == found


def test_the_public_names_are_pinned():
    """A public name appears or goes only when this list is changed with it."""
    assert regard.__all__ == [
        "AdditiveAttention",
        "Attended",
        "KVCache",
        "MultiHeadAttention",
        "RegardError",
        "ScoreRule",
        "Trace",
        "Visibility",
        "attend",
        "attend_hard",
        "attend_linear",
        "fill_mask",
        "generate",
        "gru_forward",
        "gru_step",
        "load",
        "lstm_forward",
        "lstm_step",
        "masked_softmax",
        "rnn_forward",
        "rnn_step",
        "show",
        "trace",
        "weights",
    ]


@pytest.mark.parametrize("name", regard.__all__)
def test_a_public_name_is_its_modules_own(name):
    """Every public name resolves, and to the thing its module defines."""
    value = getattr(regard, name)
    assert value.__module__ == f"regard.{regard._HOME[name]}"
    assert name in dir(regard)


def test_a_name_that_is_not_public_is_an_attribute_error():
    """The lazy lookup refuses unknown names as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'attned'"):
        _ = regard.attned


def test_no_public_name_is_a_modules_name():
    """`regard.x` is never both a function and a module, so it cannot depend on what was imported first."""
    assert set(regard.__all__).isdisjoint(ORDER)
    assert set(regard.__all__).isdisjoint(found.name for found in pkgutil.iter_modules([str(SOURCE)]))


def test_type_checkers_see_the_public_names():
    """What `__init__` imports for type checkers is exactly what it serves at run time."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"regard.{home}" for name, home in regard._HOME.items()}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["look", "--help"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments):
    """The answers a person waits for come without torch, numpy or matplotlib being imported."""
    code = (
        "import sys; from regard.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print(*{'torch', 'numpy', 'matplotlib', 'rich', 'jaxtyping'} & set(sys.modules), file=sys.stderr)"
    )
    assert run(sys.executable, "-c", code, *arguments).stderr.strip() == ""


def test_shapes_are_checked_in_this_process():
    """The import hook is on: a wrong number of dimensions is caught at the signature."""
    with pytest.raises(jaxtyping.TypeCheckError):
        heat_map(torch.zeros(2), ["a", "b"], ["a"])


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__")])
def test_the_examples_in_docstrings_run(module):
    """What a docstring shows is what happens."""
    result = doctest.testmod(
        importlib.import_module(f"regard.{module}"), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


def test_the_wheel_runs_in_an_empty_folder(tmp_path):
    """The built wheel holds every file: `regard` runs from it where the source tree is not in reach."""
    tree, wheels, target, empty = (tmp_path / name for name in ("tree", "wheels", "target", "empty"))
    tree.mkdir()
    empty.mkdir()
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=tree)
    (wheel,) = wheels.glob("regard-*.whl")
    shipped = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    ours = {path.relative_to(tree / "src") for path in (tree / "src").rglob("*") if path.is_file()}
    assert ours <= shipped

    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(*pip, "--target", target, wheel)
    shutil.rmtree(tree)
    environment = {**os.environ, "PYTHONPATH": str(target), "COLUMNS": "80"}
    where = run(sys.executable, "-c", "import regard; print(regard.__file__)", cwd=empty, env=environment)
    assert Path(where.stdout.strip()).is_relative_to(target)
    version = run(sys.executable, "-m", "regard", "--version", cwd=empty, env=environment)
    assert version.stdout == f"regard, version {regard.__version__}\n"
    assert "look" in run(target / "bin" / "regard", "--help", cwd=empty, env=environment).stdout
    look = [target / "bin" / "regard", "look", "what runs here", "--out", "look.png"]
    drawn = run(*look, cwd=empty, env=environment).stdout
    assert "what" in drawn
    assert (empty / "look.png").read_bytes().startswith(b"\x89PNG")

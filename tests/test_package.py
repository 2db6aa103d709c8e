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
from regard.plot import heat_map

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"

# DESIGN.md's layout: a file imports only from those above it. A package counts as one level.
ORDER = """
    errors outside allocation shapes visibility scores kernels attention feature_maps linear_scan linear
    recurrent_loops recurrent positions norms cache layers steps packing fast models gguf_header tensor_files
    text files hub loading decode plot_parts plot report rule_parts masks trace_layers trace_files tracing
    recording registry foreign capture growing score_gradients heads formula cost roofline train lab
    exercises view commands cli __main__
""".split()

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


def imported_levels(source, inside):
    """The levels of ORDER that a file of level `inside` imports at run time."""
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
            home = node.module
            # A public name imported from the package itself counts for the module it lives in.
            names = (
                [f"regard.{regard._HOME.get(alias.name, alias.name)}" for alias in node.names]
                if home == "regard"
                else [home]
            )
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            level = rest.partition(".")[0]
            if top == "regard" and level and level != "__version__":
                yield level


def wrong_way(source, inside):
    """The imports that go down DESIGN.md's layout, or to the file's own level from outside a package."""
    below = ORDER[ORDER.index(inside) + 1 :]
    return [level for level in imported_levels(source, inside) if level in below or level not in ORDER]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_those_above_it(module):
    """No file of the package imports from one below it in the layout, nor stands outside the layout."""
    level = module.partition(".")[0]
    assert level in ORDER, f"{module} has no place in DESIGN.md's layout"
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    assert wrong_way(path.read_text(), level) == []


def test_the_architecture_page_lists_every_module_in_order():
    """The table of docs/ARCHITECTURE.md is the layout as it is: each file once, above those that use it."""
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    listed = re.findall(r"`(\w+)(?:\.py|/)`", " ".join(rows))
    there = {module.partition(".")[0] for module in MODULES}
    assert listed == [level for level in ORDER if level in there]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from regard.layers import MultiHeadAttention", ["layers"]),
        ("import regard.cli", ["cli"]),
        ("def late():\n    from regard import MultiHeadAttention", ["layers"]),
        ("from regard import nowhere", ["nowhere"]),
        ("from regard.models.transformer import Transformer", ["models"]),
        ("from regard.errors import ShapeError\nfrom regard import __version__\nimport torch", []),
        ("if TYPE_CHECKING:\n    from regard.layers import MultiHeadAttention", []),
    ],
)
def test_the_import_check_finds_each_way_of_importing(source, found):
    """The check above fails on every form a wrong import can take, and on no right one."""
    assert wrong_way(source, "attention") == found


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
    drawn = run(target / "bin" / "regard", "look", "what runs here", cwd=empty, env=environment).stdout
    assert "what" in drawn
    assert (empty / "look.png").read_bytes().startswith(b"\x89PNG")

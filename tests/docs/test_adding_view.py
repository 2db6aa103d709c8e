"""The page on adding a view is followed in a copy: generated, checked, tested and built."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard import registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding" / "view.md").read_text(encoding="utf-8")
NODE, MODULES = shutil.which("node"), ROOT / "web" / "node_modules"


def edits():
    """The page's blocks in order: (file, kind of block, what it holds)."""
    file = ""
    for name, kind, body in re.findall(r"^`([\w/.]+\.\w+)`$|^```(ts|diff)\n(.*?)^```$", PAGE, re.M | re.S):
        if name:
            file = name
        else:
            yield file, kind, body


@pytest.fixture
def copy(tmp_path):
    """A copy of what the page changes, changed; a place that is not found is a page that is stale."""
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(
        ROOT / "src" / "regard", tmp_path / "src" / "regard", ignore=shutil.ignore_patterns("*.pyc")
    )
    for file, kind, body in edits():
        path = tmp_path / file
        if kind == "ts":
            path.write_text(body, encoding="utf-8")
            continue
        lines = body.splitlines()
        before = "\n".join(line[1:] for line in lines if line[:1] != "+")
        after = "\n".join(line[1:] for line in lines if line[:1] != "-")
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{file}: {before}"
        path.write_text(text.replace(before, after), encoding="utf-8")
    return tmp_path


def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_names_four_files():
    """A row of the registry, the view, where it is shown, and its test."""
    assert list(dict.fromkeys(file for file, *_ in edits())) == [
        "src/regard/registry.py",
        "web/src/received.ts",
        "web/src/stage.ts",
        "web/tests/received.test.ts",
    ]


def test_a_row_of_the_registry_becomes_typescript(copy, monkeypatch):
    """The generated table has the view, its key and its sentence, and an address may hold its name."""
    assert "received" not in registry.VIEWS
    changed = loaded(copy / "src" / "regard" / "registry.py", "changed_registry")
    monkeypatch.setattr(regard, "registry", changed)
    monkeypatch.setitem(sys.modules, "regard.registry", changed)
    written = loaded(ROOT / "web" / "generate.py", "generate").typescript()
    assert 'export type AtlasView = "map" | "lines" | "text" | "received";' in written
    assert 'sentence: "how much each token is looked at",' in written


@pytest.mark.slow
@pytest.mark.skipif(
    NODE is None or not MODULES.exists(),
    reason="only who changes web/ needs Node and `npm ci`: neither is here",
)
def test_the_view_of_the_page_is_checked_tested_and_built(copy, monkeypatch):
    """Types, tests and bundle of the changed copy; the bundle holds the view."""
    changed = loaded(copy / "src" / "regard" / "registry.py", "changed_registry")
    monkeypatch.setattr(regard, "registry", changed)
    monkeypatch.setitem(sys.modules, "regard.registry", changed)
    written = loaded(ROOT / "web" / "generate.py", "generate").typescript()
    (copy / "web" / "src" / "registry.ts").write_text(written, encoding="utf-8")
    (copy / "web" / "node_modules").symlink_to(MODULES)
    for command in ("npm run format", "npm run check", "npm test", "npm run build"):
        done = subprocess.run(command.split(), cwd=copy / "web", capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Received" in (copy / "src" / "regard" / "view" / "static" / "regard.js").read_text(
        encoding="utf-8"
    )

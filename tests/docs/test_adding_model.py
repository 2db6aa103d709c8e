"""The page on adding a model with a name does what it says: its own code is run."""

import re
from pathlib import Path

from regard.files import hub

PAGE = Path(__file__).parents[2] / "docs" / "adding" / "model.md"


def test_the_code_of_the_page_adds_a_model(tmp_path, monkeypatch, capsys):
    """The model is loaded by its new name and writes; a damaged archive is refused and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "MODELS", dict(hub.MODELS))  # put back afterwards
    names = {}
    cells = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(cells) == 4
    for cell in cells:
        exec(cell, names)
    assert capsys.readouterr().out.startswith("Apache-2.0 ('")
    assert "is not what it should be: its SHA-256 must be" in names["refused"]
    assert hub.present("tiny-gpt") is None

"""The one table of measures, labels and views, and what is made from it."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from regard.cli import main
from regard.heads import LABELS, RULES, measure
from regard.heads.measures import token_facts
from regard.registry import LABEL_COLORS, LABEL_SENTENCES, MEASURES, SPECIAL_TOKEN, VIEWS
from regard.tracing.traces import Trace

ROOT = Path(__file__).parent.parent
TOKENS = [
    "[CLS]",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<unk>",
    "<0x0A>",
    "<517>",
    "[mask]",
    "<",
    "<a b>",
    "s",
    "[A1]",
]
SPECIAL = ["[CLS]", "<s>", "</s>", "<|im_start|>", "<unk>"]


def test_the_page_has_the_registry_that_python_has():
    """registry.ts is what generate.py would write now."""
    generated = runpy.run_path(str(ROOT / "web" / "generate.py"))["typescript"]()
    committed = (ROOT / "web" / "src" / "registry.ts").read_text(encoding="utf-8")
    assert committed == generated, "run: make web"


def test_special_tokens_are_those_that_are_spelled_so():
    """Bytes and numbers in angle brackets stand for text."""
    assert [token for token in TOKENS if re.fullmatch(SPECIAL_TOKEN, token)] == SPECIAL
    marked = token_facts(TOKENS).special.tolist()
    assert [token for token, is_special in zip(TOKENS, marked, strict=True) if is_special] == SPECIAL


@pytest.mark.skipif(shutil.which("node") is None, reason="asks Node, which only the page's authors need")
def test_the_pages_pattern_finds_the_same_special_tokens():
    """The generated expression, run by a JavaScript engine, agrees with Python's."""
    written = (ROOT / "web" / "src" / "registry.ts").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"SPECIAL_TOKEN = (/.*/);", written)
    script = f"console.log(JSON.stringify({json.dumps(TOKENS)}.filter((t) => {pattern}.test(t))))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == SPECIAL


def test_every_measure_is_measured_and_every_label_has_a_colour_and_a_sentence():
    """No row lacks its function, and no label its words."""
    measured = measure(Trace.from_weights([[1.0, 0.0], [0.5, 0.5]]))
    for name, info in MEASURES.items():
        assert measured[name].shape == (1, 1), name
        assert all((info.sentence, info.title, info.chance))
    assert (
        len({rule.measure for rule in RULES})
        == len(RULES)
        == sum(info.label is not None for info in MEASURES.values())
    )
    assert set(LABELS) == set(LABEL_COLORS) == set(LABEL_SENTENCES)
    assert len({view.key for view in VIEWS.values()}) == len(VIEWS)


def test_the_documentation_lists_every_measure():
    """The table of docs/measuring.md has each measure with the registry's own sentence."""
    text = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", text, flags=re.MULTILINE)
    labels = {info.name: info.label.name if info.label else "" for info in MEASURES.values()}
    wanted = [(name, info.sentence, info.unit, labels[name]) for name, info in MEASURES.items()]
    assert [tuple(cell.strip() for cell in row) for row in rows] == wanted


def test_heads_can_be_sorted_by_every_measure():
    """The command line takes its choices from the registry, and needs no torch to list them."""
    shown = CliRunner().invoke(main, ["heads", "--help"])
    assert shown.exit_code == 0
    listed = shown.output.replace("\n", "").replace(" ", "")
    assert "|".join(["layer", "label", *MEASURES]) in listed
    code = "import sys, regard.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The exported page as a file: its size, its policy, what it holds, and what it was built from."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.errors import ArgumentError
from regard.tracing.layers import LayerTrace
from regard.tracing.traces import Trace
from regard.view.document import Document, documents_of
from regard.view.page import bundle, embedded, embedded_bytes, export, page, to_html

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "web"


def a_trace(n_token=17, n_layer=2, n_head=3, dim=5, n_batch=1):
    layers = []
    for index in range(n_layer):
        q, k, v = torch.randn(3, n_batch, n_head, n_token, dim)
        layers.append(LayerTrace(f"encoder.{index}.self", q, k, attend(q, k, v).lse, ScoreRule(), v))
    tokens = tuple(tuple(f"t{i}" for i in range(n_token)) for _ in range(n_batch))
    return Trace(tuple(layers), tokens)


def data_of(html):
    """What the page carries, read as a browser reads it."""
    (found,) = re.findall(r'<script type="application/json" id="regard-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(found)


def test_the_page_says_what_its_trace_is_not():
    """Marks of a trace are notices of its page: nothing unverified or unseen is shown as fact."""
    facts = {"unverified": "in layer 1", "not_seen": "layers.2", "as_returned": "by the model"}
    (document,) = data_of(page(documents_of(replace(a_trace(), facts=facts))))["docs"]
    said = ["unverified: in layer 1", "not seen: layers.2", "as returned: by the model"]
    assert document["meta"]["notices"] == said


def sources_hash():
    digest = hashlib.sha256()
    names = [f"src/{path.name}" for path in sorted((WEB / "src").iterdir(), key=lambda path: path.name)]
    for name in [*names, "build.mjs", "package-lock.json"]:
        digest.update(name.encode() + b"\0" + (WEB / name).read_bytes() + b"\0")
    return digest.hexdigest()


def test_the_bundle_was_built_from_these_sources():
    """The first line of the bundle holds the hash of web/: whoever changes one builds the other."""
    assert bundle().partition("\n")[0] == f"// sources {sources_hash()}", "run: make web"


@pytest.mark.skipif(
    not (WEB / "node_modules" / "esbuild").exists() or shutil.which("node") is None,
    reason="web/node_modules is not installed: the hash above stands for the rebuild",
)
def test_building_again_gives_the_same_bundle(tmp_path):
    """Where Node and esbuild are, the sources make this very bundle."""
    built = tmp_path / "regard.js"
    subprocess.run(["node", "build.mjs", built], cwd=WEB, check=True, capture_output=True)
    assert built.read_text(encoding="utf-8") == bundle()


def test_the_bundle_loads_nothing_from_elsewhere():
    """No import, no address of another host: only names of XML spaces may look like one."""
    text = bundle()
    assert not re.search(r'\bimport\s*[("\']', text)
    assert re.findall(r"https?://(?!www\.w3\.org)[^\"'` ]+", text) == []


def test_the_policy_allows_the_module_by_its_hash_and_nothing_else():
    """A browser that follows the policy runs the one script whose hash it names."""
    html = page(documents_of(a_trace()))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    (module,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(module.encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'none'"
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--", "]]>&amp;\u2028", "\U0001f600"]
)
def test_no_text_can_end_the_element_that_holds_it(text):
    """Whatever a token or text says, the page has two script elements and gives the text back whole."""
    found = Trace.from_weights([[1.0]], rows=[text])
    html = page([Document(found, text=text, title=text)])
    assert len(re.findall(r"<script\b", html)) == len(re.findall(r"</script>", html)) == 2
    assert "<!--" not in html
    (doc,) = data_of(html)["docs"]
    assert doc["meta"]["tokens"] == [text]
    assert doc["meta"]["title"] == text


def test_size_grows_with_the_length_and_not_with_its_square():
    """Four times the tokens take four times the bytes, give or take names and measures."""
    short, long = (len(embedded(Document(a_trace(n)))["data"]) for n in (101, 404))
    assert long == pytest.approx(4 * short, rel=0.01)


def test_512_tokens_of_minilm_stay_below_15_megabytes(tmp_path):
    """The size of MiniLM's six layers of twelve heads over 512 tokens, values included."""
    trace = a_trace(512, n_layer=6, n_head=12, dim=32)
    size = export(trace, tmp_path / "page.html")
    assert size == (tmp_path / "page.html").stat().st_size
    assert size < 15_000_000


def test_a_page_above_200_megabytes_must_be_insisted_on(tmp_path, monkeypatch):
    """A large page is refused with its size and what to do; --force writes it."""
    monkeypatch.setattr("regard.view.page.MOST_BYTES", 1000)
    with pytest.raises(ArgumentError, match=r"more than 0: choose some layers .* or insist"):
        export(a_trace(), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    assert export(a_trace(), tmp_path / "page.html", force=True) > 1000


@pytest.mark.parametrize("precision", ["float32", "float24"])
def test_the_size_announced_is_about_the_size_made(precision):
    """What a page is refused by is what it would have."""
    document = Document(a_trace(211))
    made = len(embedded(document, precision)["data"])
    assert embedded_bytes(document, precision) == pytest.approx(made, rel=0.01)


def decoded(doc, layer, name):
    """A tensor of an embedded document, taken apart byte by byte."""
    place = doc["layers"][layer]["tensors"][name]
    data = base64.b64decode(doc["data"])[place["at"] : place["at"] + place["bytes"]]
    if place["dtype"] == "float24":
        whole = np.frombuffer(data, np.uint8).reshape(-1, 3)
        padded = np.concatenate([np.zeros((len(whole), 1), np.uint8), whole], axis=1)
        return padded.reshape(-1).view("<f4").reshape(place["shape"])
    return np.frombuffer(data, {"float32": "<f4", "float16": "<f2"}[place["dtype"]]).reshape(place["shape"])


def test_short_texts_keep_every_bit_of_queries_and_keys():
    """A page of few tokens has room for float32, and uses it."""
    trace = a_trace()
    doc = embedded(Document(trace))
    assert np.array_equal(decoded(doc, 1, "q"), trace.layers[1].q[0].numpy())
    assert np.array_equal(decoded(doc, 1, "lse"), trace.layers[1].lse[0].numpy())


def test_24_bits_are_the_nearest_there_are():
    """Three bytes of a float, rounded: 16 bits of precision, so a relative error of at most 2^-16."""
    trace = a_trace()
    found, wanted = decoded(embedded(Document(trace), "float24"), 0, "k"), trace.layers[0].k[0].numpy()
    assert np.abs(found / wanted - 1).max() <= 2**-16


def test_every_sequence_of_a_batch_is_a_document():
    """A page of two sequences holds both, each with its own numbers."""
    trace = a_trace(n_batch=2)
    docs = data_of(page(documents_of(trace)))["docs"]
    assert len(docs) == 2
    for batch, doc in enumerate(docs):
        assert np.array_equal(decoded(doc, 0, "q"), trace.layers[0].q[batch].numpy())


def test_a_page_of_a_trace_is_one_text():
    """The page that `regard look --save` writes, opened where it is told."""
    trace = Trace.from_weights(torch.rand(2, 3, 3).softmax(-1), rows=["a", "b", "<c>"])
    page_text = to_html(trace, layer=0, head=1)
    assert page_text.startswith("<!doctype html>")
    assert '"head":1' in page_text
    assert "<c>" not in page_text  # nothing of a text ends an element
    assert "\\u003cc\\u003e" in page_text

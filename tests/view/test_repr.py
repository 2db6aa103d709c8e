"""Traces and heads as the last value of a notebook's cell, without a widget."""

import base64
import re
from io import BytesIO

import numpy as np
import torch
from matplotlib.image import imread

from regard.attention import DenseBias, attend, attend_linear, feature_map
from regard.files.loading import load
from regard.heads import measure, survey
from regard.layers.cache import KVCache
from regard.registry import MEASURES
from regard.tracing import GrowingTrace, score_gradients
from regard.tracing import traces as tracing
from regard.tracing.take import trace
from regard.tracing.traces import Trace, _small


def pictures(html):
    return [
        imread(BytesIO(base64.b64decode(each)), format="png")
        for each in re.findall(r"data:image/png;base64,([^\"]+)", html)
    ]


def test_a_trace_shows_what_it_is_of_and_every_head():
    """The model, the text and the sizes are named, and the picture has a place for each of 72 heads."""
    html = trace(load("minilm", random=True), "to <be>")._repr_html_()
    assert "to &lt;be&gt;" in html
    assert "6 of 12 heads" in html
    (drawn,) = pictures(html)
    assert drawn.shape[1] > 12 * 30
    assert drawn.shape[0] > 6 * 30


def test_small_pictures_hide_the_future():
    """Blocks that no query of theirs reaches are NaN, the others hold the largest weight."""
    found = trace(load("gpt2", random=True), "a" * 53, layers=[0])
    small = _small(found.layers[0], 3)
    assert small.shape == (40, 40)
    assert np.isnan(small[0, 2:]).all()
    assert np.isnan(small[20, :15]).sum() == 0
    assert np.nanmax(small) == found.weights(0, 3).max().item()


def test_a_long_trace_shows_its_first_layers_alone(monkeypatch):
    """Reading every weight of a long text takes too long for a cell's value: it says how many it shows."""
    monkeypatch.setattr(tracing, "_SMALL_COST", 2 * 3 * 37 * 37)
    html = Trace.from_weights([torch.rand(1, 3, 37, 37)] * 5)._repr_html_()
    assert "the first 2 layers" in html


def test_what_is_returned_prints_in_one_short_line():
    """However many numbers it holds: what it is, and the shapes."""
    loaded = load("gpt2", random=True)
    traced = trace(loaded, "where does it look?", layers=[0, 1])
    assert repr(traced) == (
        "Trace(gpt2 (random): 19 tokens, layers 2 of 12 heads, 0.2 MB, Checks(2 layers, 0 failed))"
    )
    assert repr(traced.layers[1]) == (
        "LayerTrace(name='decoder.1.self', q=float32[1, 12, 19, 64], k=float32[1, 12, 19, 64], "
        "lse=float32[1, 12, 19], rule=ScoreRule(visible=Visibility(causal=True)))"
    )
    gradients = score_gradients(loaded, "where?", layers=[0])
    growing, cache = GrowingTrace(), KVCache(2)
    loaded.model.begin(torch.tensor([[5, 7, 11]]), record=growing)
    cache[0].append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    q = torch.randn(1, 2, 300, 5)
    linear = attend_linear(q, q, q, feature_map("favor", qk_dim=5), return_state=True)
    for said in (
        traced.checks,
        traced.layers[0].score_parts(0, 3, 2),
        gradients,
        gradients.layer(0),
        growing,
        cache,
        cache[0],
        attend(q, q, q),
        linear,
        feature_map("favor", qk_dim=5),
        DenseBias(q),
        Trace.from_weights(torch.rand(300, 300)).layers[0],
    ):
        assert len(repr(said)) < 600, type(said)
        assert "\n" not in repr(said), type(said)
    assert repr(growing) == "GrowingTrace(12 layers, 3 tokens so far)"
    assert repr(cache) == "KVCache(2 layers, 3 positions, 0.0 MB)"
    assert repr(attend(q, q, q)) == "Attended(out=float32[1, 2, 300, 5], lse=float32[1, 2, 300])"


def test_a_trace_without_layers_still_shows_itself():
    """Nothing to draw is no error."""
    assert "trace of" in Trace(())._repr_html_()


def test_a_survey_shows_the_labels_of_its_heads():
    """The picture of labels, and a table with a row for each head that has one."""
    found = survey(load("minilm", random=True), ["to be or not", "that is the question"])
    html = found._repr_html_()
    named = [each for each in found.labels() if each.label not in ("none", "like random")]
    assert len(pictures(html)) == 1
    assert html.count("<tr>") == 1 + len(named)
    assert f"{len(named)} of 72 heads have a label" in html


def test_measures_show_each_measure_with_its_strongest_heads():
    """One row a measure, and in it the heads that have most of it, in order."""
    found = measure(trace(load("minilm", random=True), "to be or not to be"))
    html = found._repr_html_()
    assert html.count("<tr>") == 1 + len(MEASURES)
    (first, *_, last) = strongest = found.strongest("previous", 72)
    assert len(strongest) == 72
    assert first[2] == found["previous"].max().item()
    assert last[2] == found["previous"].min().item()
    assert f"{first[0]}.{first[1]}: {first[2]:.2f}" in html

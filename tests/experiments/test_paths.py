"""Path patching: a path by hand, in a model whose blocks are called one by one."""

import pytest
import torch
from tiny_models import tiny

from regard.attention.softmax import weights
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments import PredictionTarget, path_effects
from regard.experiments.engine import RowEngine
from regard.models.transformer import Transformer

CLEAN, CORRUPTED = [5, 17, 3, 42, 8, 29], [5, 17, 30, 42, 8, 29]


@torch.no_grad()
@pytest.mark.parametrize("side", ["q", "k", "v"])
def test_a_path_is_what_the_stream_carries_to_one_side_of_one_head(side):
    """By hand: the sender's change is added to the stream, the receiver's side is projected from that."""
    loaded = tiny("gpt2")
    model = loaded.model
    found = path_effects(loaded, CLEAN, CORRUPTED, sender=(0, 2), answer=7, against=9, sides=side)
    asked = PredictionTarget.about(loaded, CLEAN, 7, 9)
    runs = []
    for ids in (CLEAN, CORRUPTED):
        given = PredictionTarget.about(loaded, ids, 7, 9)
        runs.append(RowEngine(given.loaded, given.given, given.reading).rows)
    clean, corrupted = runs
    first, second = model.decoder.blocks
    matrix = first.attention.out.weight.unflatten(1, (6, 4))[:, 2]
    change = corrupted.outputs["decoder.0.self"][0, 2] - clean.outputs["decoder.0.self"][0, 2]
    stream = clean.kept[0][1] + change @ matrix.T  # the feed-forward layer of the first block stays
    read = second.attention_norm(stream)
    attention = second.attention
    changed = {
        name: layer(read).unflatten(-1, (6, 4)).transpose(1, 2)
        for name, layer in (("q", attention.query), ("k", attention.key), ("v", attention.value))
    }
    k, v = clean.keys_values["decoder.1.self"]
    parts = {"q": clean.queries["decoder.1.self"], "k": k, "v": v, side: changed[side]}
    shares = weights(parts["q"], parts["k"], attention.rule)
    new = clean.outputs["decoder.1.self"].clone()
    new[:, 4] = (shares @ parts["v"])[:, 4]
    # The block by hand, from its clean input on.
    x = clean.kept[0][1]
    x = x + attention.out(new.transpose(1, 2).flatten(2))
    x = x + second.ff(second.ff_norm(x))
    logits = model.logits(model.decoder.norm(x))[0, -1]
    path = next(path for path in found.paths if (path.layer, path.head) == (1, 4))
    assert path.change == pytest.approx(float(asked.score(logits)) - found.score, abs=1e-5)
    assert abs(path.change) > 1e-5
    assert path.words == f"{ {'q': 'queries', 'k': 'keys', 'v': 'values'}[side] } of layer 1 head 4"
    assert len(found.paths) == 6


def test_paths_that_lead_nowhere_are_refused():
    loaded = tiny("gpt2")
    with pytest.raises(ArgumentError, match="does not come after layer 1"):
        path_effects(loaded, CLEAN, CORRUPTED, sender=(1, 2), receivers=[(0, 1)], answer=7)
    with pytest.raises(ArgumentError, match="sides are letters of 'qkv'"):
        path_effects(loaded, CLEAN, CORRUPTED, sender=(0, 2), answer=7, sides="qx")
    with pytest.raises(ShapeError, match="equally many tokens"):
        path_effects(loaded, CLEAN, CORRUPTED[:-1], sender=(0, 2), answer=7)
    with pytest.raises(UnsupportedError, match="linear attention"):
        path_effects(tiny("linear"), CLEAN, CORRUPTED, sender=(0, 2), answer=7)
    assert isinstance(loaded.model, Transformer)
    assert path_effects(loaded, CLEAN, sender=(0, 2), answer=7, receivers=[(1, 1)], sides="v").strongest(1)

"""Which layer is meant: one text form, taken apart in one place, and what a person calls it."""

import pytest

from regard.layers.layer_id import LayerId, layer_labels, nth_call


@pytest.mark.parametrize(
    ("text", "stack", "index", "kind", "call"),
    [
        ("decoder.23.self", "decoder", 23, "self", 1),
        ("decoder.0.cross", "decoder", 0, "cross", 1),
        ("decoder.cross", "decoder", None, "cross", 1),
        ("transformer.h.23.attn", "transformer.h", 23, "self", 1),
        ("decoder.block.3.layer.1.EncDecAttention", "decoder.block", 3, "self", 1),
        ("3.attn", "", 3, "self", 1),
        ("self_attn", "self_attn", None, "self", 1),
        ("groups.0.attn#5", "groups", 0, "self", 5),
    ],
)
def test_a_layers_text_is_taken_apart_and_put_together_again(text, stack, index, kind, call):
    """`str` is the inverse of `parse`."""
    layer = LayerId.parse(text)
    assert (layer.stack, layer.index, layer.kind, layer.call) == (stack, index, kind, call)
    assert str(layer) == text


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["decoder.0.self", "decoder.1.self"], ["layer 0", "layer 1"]),
        (["h.0.attn", "h.1.attn"], ["layer 0", "layer 1"]),
        (["layers.4.attn", "layers.9.attn"], ["layers layer 4", "layers layer 9"]),
        (
            ["encoder.0.self", "decoder.0.self", "decoder.0.cross"],
            ["encoder layer 0", "decoder layer 0", "decoder layer 0 cross"],
        ),
        (["g.0.attn", "g.0.attn#2"], ["g layer 0", "g layer 0, call 2"]),
        (["stages.0.blocks.0.attn", "stages.0.blocks.1.attn"], None),
        (["attn"], ["attn"]),
    ],
)
def test_a_label_says_no_more_than_tells_layers_apart(texts, labels):
    """Stack and kind only where there are several, or the number alone would choose another layer."""
    assert layer_labels([LayerId.parse(text) for text in texts]) == (labels or texts)


def test_a_modules_calls_are_counted():
    """The first has the module's own name."""
    assert nth_call("attn", []) == "attn"
    assert nth_call("attn", ["attn", "attn2", "attn#2"]) == "attn#3"

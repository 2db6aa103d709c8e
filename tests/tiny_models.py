"""Small models that several test files trace."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from regard.files.loading import Loaded, ModelFacts
from regard.files.tokenizer import byte_tokenizer
from regard.layers.block import BlockConfig
from regard.models.families import initialise
from regard.models.transformer import Transformer, TransformerConfig

TEXT = "the cat sat on the mat because it was tired"
FAMILIES = {
    "gpt2": {"n_decoder_layer": 2},
    "bert": {"n_encoder_layer": 2, "lm_head": "masked", "norm_first": False, "final_norm": False},
    "llama": {"n_decoder_layer": 2, "positions": "rotary", "n_kv_head": 3, "norm": "rms"},
    "window": {"n_decoder_layer": 2, "window": 5},
    "t5": {"n_encoder_layer": 2, "n_decoder_layer": 2, "positions": "relative", "scale": 1.0},
    "linear": {"n_decoder_layer": 2, "feature_map": "elu1"},
    "sinks": {"n_decoder_layer": 2, "positions": "rotary", "n_kv_head": 2, "norm": "rms", "sinks": True,
              "qk_norm": True, "softcap": 9.0, "output_gate": True},
}  # fmt: skip
BLOCK_FIELDS = (
    *("norm_first", "n_kv_head", "norm", "window", "scale", "feature_map"),
    *("sinks", "qk_norm", "softcap", "output_gate"),
)


def tiny(family):
    """A small loaded model of a family, with attention far from flat."""
    given = dict(FAMILIES[family])
    block = {name: given.pop(name) for name in BLOCK_FIELDS if name in given}
    config = TransformerConfig(
        vocab=263, block=BlockConfig(model_dim=24, n_head=6, ff_dim=31, **block), n_position=97, **given
    )
    model = initialise(Transformer(config), seed=3).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                parameter.mul_(20 if family != "t5" else 2)
            if name.endswith(("sinks", "query_norm.weight")):
                parameter.mul_(60 if name.endswith("sinks") else 3)
    facts = ModelFacts(family, family, 2, 6, 6, 24, 263, 97, 1, "random weights, seed 3", trained=False)
    return Loaded(model, byte_tokenizer(263), facts, start_token=0 if family == "t5" else None)


def plain_softmax(layer):
    """A layer's weights by the definition, from the queries and keys it holds, and what they may differ by.

    float32 rounds a score of 10 by 1e-6, and a weight by as much of itself.
    """
    scores = layer.rule.scores(layer.q, layer.k)
    largest = float(scores[scores > -math.inf].abs().max())
    if layer.rule.sink is not None:
        beside = layer.rule.sink[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, beside], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)[..., : layer.n_key]
    return weights, 1e-6 * max(1.0, largest / 10)


def whole(layer):
    return layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key))


def target_of(family, *texts):
    return {"target": list(texts)} if family == "t5" else {}


class NanoAttention(nn.Module):
    """Causal attention as people write it."""

    def __init__(self, dim=24, n_head=3):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(x.shape))


class NanoGPT(nn.Module):
    """Two blocks over an embedding."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(61, 24)
        self.h = nn.ModuleList(NanoAttention() for _ in range(2))

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = x + block(x)
        return x @ self.wte.weight.T

"""What the table of mechanisms answers, against the tools themselves."""

from dataclasses import fields
from functools import partial

import pytest
import torch

from regard.costs import cost
from regard.errors import UnsupportedError
from regard.experiments import prune
from regard.files.loading import Loaded, described
from regard.files.tokenizer import byte_tokenizer
from regard.heads import ov_circuit, qk_circuit
from regard.layers.block import BlockConfig
from regard.layers.eviction import Evict
from regard.layers.positions import RotaryScaling
from regard.models.families import initialise
from regard.models.mechanisms import MECHANISMS, PLAIN, TOOLS, why_not
from regard.models.transformer import Transformer, TransformerConfig
from regard.tracing.take import trace

VOCAB, DIM, N_HEAD = 263, 24, 4
ROTARY = {"positions": "rotary"}
# A model that has the mechanism, and no other that any tool lacks.
HAVING = {
    "shared key heads": {"block.n_kv_head": 2},
    "values of another size than queries": {"block.v_dim": 7},
    "norms after the sum": {"block.norm_first": False, "final_norm": False},
    "norms on what layers give": {"block.norm_after": True},
    "parallel blocks": {"block.parallel": True},
    "a gated feed-forward": {"block.gated": True},
    "linear attention": {"block.feature_map": "elu1"},
    "latent attention": {"block.latent_dim": 7, "block.latent_rotary_dim": 2, **ROTARY},
    "the delta rule": {"block.delta": True},
    "a sliding window": {"block.window": 5},
    "a softcap of scores": {"block.softcap": 2.0},
    "norms of queries and keys": {"block.qk_norm": True},
    "learned sinks": {"block.sinks": True},
    "ALiBi": {"block.alibi": True, "positions": "none"},
    "an output gate": {"block.output_gate": True},
    "an encoder and a decoder": {"n_encoder_layer": 2},
    "relative positions": {"positions": "relative"},
    "scaled rotary positions": {
        **ROTARY,
        "rotary_scaling": RotaryScaling("yarn", factor=4.0, original_positions=31),
    },
    "partly rotated heads": {**ROTARY, "rotary_dim": 2},
    "layers with and without a window": {"block.window": 5, "local": (True, False)},
    "token types": {"n_token_type": 2},
    "a softcap of logits": {"lm_head_softcap": 3.0},
    "pruned heads": {"kept_heads": ((0, 1, 3), (0, 1, 2, 3))},
}


def config_of(name):
    """The config of a small model with one mechanism."""
    given = {"n_decoder_layer": 2, "n_position": 97, **HAVING.get(name, {})}
    block = {path[6:]: value for path, value in given.items() if path.startswith("block.")}
    outer = {path: value for path, value in given.items() if not path.startswith("block.")}
    block = BlockConfig(model_dim=DIM, n_head=N_HEAD, ff_dim=31, **block)
    return TransformerConfig(vocab=VOCAB, block=block, **outer)


def model_of(name):
    """A model whose every parameter does something."""
    model = initialise(Transformer(config_of(name)), seed=3).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(std=0.2, generator=generator))
    return model


def loaded_of(name):
    model = model_of(name)
    return Loaded(model, byte_tokenizer(VOCAB), described(model, name, "random"), start_token=0)


def traces(name):
    """Weights of every layer, which times the values give what the layer gave."""
    model, tokens = model_of(name), torch.randint(VOCAB, (2, 7))
    both = model.kind == "encoder-decoder"
    traced = trace(model, tokens, target=tokens if both else None, keep_v=True)
    assert traced.names == tuple(model.attention_names)
    return traced.checks.passed


def decodes(name):
    """Packed decoding is taken, and gives what the whole forward pass gives."""
    model = model_of(name)
    prompt, more = torch.randint(VOCAB, (2, 7)), torch.randint(VOCAB, (2, 3))
    _, decoding = model.begin(prompt, start_token=5)
    fed = more
    for token in more.unbind(1):
        scores = decoding.next(token)
    if model.kind == "encoder-decoder":
        fed = torch.cat([torch.full((2, 1), 5), more], 1)
        whole = model(prompt, fed).logits[:, -1]
    else:
        whole = model(torch.cat([prompt, fed], 1)).logits[:, -1]
    torch.testing.assert_close(scores, whole, rtol=1e-4, atol=1e-4)
    return decoding.engine is not None


def costs(name):
    """The formula counts, and counts the parameters that there are."""
    config = config_of(name)
    counted = cost(config, "decode", length=5)
    assert counted.n_parameter == sum(each.numel() for each in Transformer(config).parameters())
    return True


def prunes(name):
    """A head is removed, and the model gives what it gives with that head's output set to 0."""
    loaded = loaded_of(name)
    model, tokens = loaded.model, torch.randint(VOCAB, (2, 7))
    given = (tokens, tokens) if model.kind == "encoder-decoder" else (tokens,)
    layer = model.attention_names[-1]
    smaller = prune(loaded, [(len(model.attention_names) - 1, 2)]).model

    def without(at, q, k, v, out, lse, rule):
        return out.index_fill(1, torch.tensor([2]), 0.0) if str(at) == str(layer) else None

    torch.testing.assert_close(
        smaller(*given).logits, model(*given, record=without).logits, rtol=1e-4, atol=1e-4
    )
    return True


def evicts(name):
    """Decoding with a cache that drops positions runs; one with room for all changes nothing."""
    model, prompt = model_of(name), torch.randint(VOCAB, (2, 7))
    plain, _ = model.begin(prompt, start_token=5)
    roomy, _ = model.begin(prompt, start_token=5, cache=Evict("h2o", budget=64))
    torch.testing.assert_close(roomy, plain)
    _, decoding = model.begin(prompt, start_token=5, cache=Evict("h2o", budget=4))
    decoding.next(prompt[:, 0])
    return True


def has_circuit(circuit, name):
    """The circuit of a head can be had."""
    return len(circuit(loaded_of(name), 1, 0).strongest(7)) > 0


def adds_up(name):
    """What heads give, each through its part of the output matrix, is what the block adds by attention."""
    model, tokens, seen, given = model_of(name), torch.randint(VOCAB, (1, 7)), {}, {}
    block = model.decoder.blocks[1]
    if block.attention.key.in_features != DIM:  # the machine shows keys made from what the layer reads
        return False
    block.register_forward_hook(
        lambda _, args, kwargs, out: seen.update(x=args[0], out=out), with_kwargs=True
    )
    block.ff.register_forward_hook(lambda _, args, out: seen.update(ff=out))
    if block.cross is not None:
        block.cross.register_forward_hook(
            lambda _, args, kwargs, out: seen.update(cross=out), with_kwargs=True
        )

    def record(at, q, k, v, out, lse, rule):
        given[str(at)] = out

    model(*((tokens, tokens) if model.kind == "encoder-decoder" else (tokens,)), record=record)
    own = [out for at, out in given.items() if "cross" not in at and "encoder" not in at][-1]
    written = torch.einsum(
        "bhqv,dhv->bqd", own, block.attention.out.weight.unflatten(1, (block.attention.n_head, -1))
    )
    if block.attention.out.bias is not None:
        written = written + block.attention.out.bias
    added = seen["out"] - seen["x"] - seen["ff"] - seen.get("cross", 0.0)
    return torch.allclose(added, written, rtol=1e-4, atol=1e-4)


RUN = {
    "tracing": traces,
    "decoding": decodes,
    "costs": costs,
    "pruning": prunes,
    "eviction": evicts,
    "circuits": partial(has_circuit, ov_circuit),
    "qk_circuits": partial(has_circuit, qk_circuit),
    "machine": adds_up,
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
@torch.no_grad()
def test_each_tool_does_what_the_table_says(mechanism, tool):
    """A yes is tried and compared with an independent computation; a no is refused, with that reason."""
    torch.manual_seed(0)
    config = config_of(mechanism.name)
    assert mechanism.used(config.block if mechanism.of_block else config)
    reason = why_not(config, tool)
    assert (reason is None) == (getattr(mechanism, tool) is None)
    if reason is None:
        assert RUN[tool](mechanism.name)
        return
    try:
        assert not RUN[tool](mechanism.name)
    except UnsupportedError as error:
        assert reason in str(error)  # noqa: PT017


@pytest.mark.parametrize("tool", TOOLS)
def test_a_model_without_mechanisms_is_known_to_every_tool(tool):
    """No row is used by a plain decoder."""
    assert why_not(config_of("plain"), tool) is None


def test_every_field_of_a_config_is_declared():
    """A new field is a row of the table, or is said to be plain; none is both, and none is gone."""
    block = {f"block.{field.name}" for field in fields(BlockConfig)}
    there = block | {field.name for field in fields(TransformerConfig)}
    declared = [field for mechanism in MECHANISMS for field in mechanism.fields]
    assert len(declared) == len(set(declared))
    assert set(declared) | PLAIN == there
    assert not set(declared) & PLAIN
    assert {mechanism.name for mechanism in MECHANISMS} == set(HAVING)

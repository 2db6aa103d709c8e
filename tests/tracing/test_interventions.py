"""`intervene`: edges cut, heads gated and patched, against plain edits of the same models."""

import copy
import math
import threading

import pytest
import torch
import transformers
from tiny_models import NanoGPT, tiny
from torch import nn

import regard
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.heads.model import attention_of

IDS = torch.tensor([[5, 17, 3, 42, 8, 29, 11], [9, 2, 40, 7, 13, 21, 30]])
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 3}
COMMON = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
# A class, its config, and the output projection of its second layer.
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 24, "n_head": 4, "n_layer": 3}, "transformer.h.1.attn.c_proj"),
    "gpt_neox": (
        "GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 0.5}, "gpt_neox.layers.1.attention.dense",
    ),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 8},
              "model.layers.1.self_attn.o_proj"),
    "opt": ("OPTForCausalLM", {**SIZES, "ffn_dim": 40, "word_embed_proj_dim": 24},
            "model.decoder.layers.1.self_attn.out_proj"),
    "roberta": ("RobertaForMaskedLM", {**SIZES, "max_position_embeddings": 40},
                "roberta.encoder.layer.1.attention.output.dense"),
    "gptj": ("GPTJForCausalLM", {"n_embd": 24, "n_head": 4, "n_layer": 3, "rotary_dim": 4},
             "transformer.h.1.attn.out_proj"),  # written by hand
}  # fmt: skip


def foreign(family, attention=None):
    """A tiny random model whose attention is far from flat, and its second layer's output projection."""
    torch.manual_seed(1)
    name, config, projection = FAMILIES[family]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**{**COMMON, **config})
    if attention is not None:
        config._attn_implementation = attention
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model, model.get_submodule(projection)


def logits_of(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def close(one, other):
    one, other = one.detach(), other.detach()
    assert torch.allclose(one, other, atol=2e-5 * float(other.abs().max()), rtol=1e-4), (
        (one - other).abs().max()
    )


@pytest.fixture(params=[(name, how) for name in FAMILIES for how in (None, "eager")], ids=str)
def any_model(request):
    return foreign(*request.param)


def test_a_closed_gate_is_a_projection_with_zeroed_columns(any_model):
    """Head 2 of layer 1: the columns of the output projection that read it are set to 0, and back."""
    model, projection = any_model
    plain = logits_of(model)
    with regard.intervene(model) as run:
        run.gate(layer=1, head=2, by=0.0)
        gated = logits_of(model)
    size = 8 if isinstance(model, transformers.Qwen3ForCausalLM) else 6
    weight, columns = projection.weight, slice(2 * size, 3 * size)
    with torch.no_grad():
        kept = weight.clone()
        if isinstance(projection, nn.Linear):
            weight[:, columns] = 0
        else:  # GPT-2 writes its matrices the other way
            weight[columns] = 0
        wanted = logits_of(model)
        weight.copy_(kept)
    assert not torch.allclose(gated, plain, atol=1e-3)
    close(gated, wanted)
    assert torch.equal(logits_of(model), plain)  # the model is as it was


@pytest.mark.parametrize("key", [3, [0, 4], None], ids=str)
def test_a_knocked_out_edge_is_a_mask_of_minus_infinity(key):
    """Eager attention whose mask has -inf at one head's edge in one layer; a row without any key gives 0."""
    model, _ = foreign("qwen3", "eager")
    plain = transformers.models.qwen3.modeling_qwen3.eager_attention_forward

    def cut(module, q, k, v, mask, **options):
        assert mask is None  # transformers makes none for a function it does not know
        mask = torch.full((q.shape[2], k.shape[2]), -math.inf).triu(1).repeat(1, q.shape[1], 1, 1)
        if module.layer_idx == 1:
            mask[:, 3, 5, key if key is not None else slice(None)] = -math.inf
        out, weights = plain(module, q, k, v, mask, **options)
        return out.nan_to_num(0.0), weights

    transformers.AttentionInterface.register("cut", cut)
    before = logits_of(model)
    with regard.intervene(model) as run:
        run.knock_out(layer=1, head=3, query=5, key=key)
        changed = logits_of(model)
    model.set_attn_implementation("cut")
    wanted = logits_of(model)
    assert not torch.allclose(before, wanted, atol=1e-3)
    assert torch.equal(before[:, :5], changed[:, :5])  # rows before it do not change at all
    close(changed, wanted)


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_without_renormalising_the_other_weights_stay(family):
    """The output loses w_ij v_j and nothing else."""
    model, projection = foreign(family)
    trace = regard.trace(model, IDS, keep_v=True)
    inputs = []
    handle = projection.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    logits_of(model)
    with regard.intervene(model) as run:
        run.knock_out(layer=1, head=0, query=6, key=2, renormalise=False)
        logits_of(model)
    handle.remove()
    lost = (inputs[0] - inputs[1]).unflatten(-1, (4, 6))
    layer = trace.layer(1)
    close(
        lost[:, 6, 0], torch.stack([layer.weights(0, batch=at)[6, 2] * layer.v[at, 0, 2] for at in range(2)])
    )
    assert lost[:, 6, 1:].abs().max() == 0
    assert lost[:, :6].abs().max() == 0


def test_gates_take_a_gradient_equal_to_finite_differences():
    """d loss / d gate by autograd, and by moving the gate."""
    model, _ = foreign("opt")
    model.double()
    gate = torch.ones(4, dtype=torch.float64, requires_grad=True)

    def loss(gate):
        with regard.intervene(model) as run:
            run.gate(layer=1, by=gate)
            return model(IDS).logits[:, -1, 7].sum()

    (gradient,) = torch.autograd.grad(loss(gate), gate)
    for head in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[head] = 1e-4
        with torch.no_grad():
            slope = (loss(gate + step) - loss(gate - step)) / 2e-4
        assert math.isclose(float(gradient[head]), float(slope), rel_tol=1e-4, abs_tol=1e-8)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gptj"])
@pytest.mark.parametrize("query", [None, [2, 5]], ids=["all", "some"])
def test_patched_outputs_are_those_of_the_other_run(family, query):
    """The slice of the output projection's input, exchanged by a hook of PyTorch's."""
    model, projection = foreign(family)
    other = torch.tensor([[5, 17, 3, 2, 8, 29, 11], [9, 2, 40, 7, 1, 21, 30]])
    size = 8 if family == "qwen3" else 6
    clean = regard.trace(model, other, keep_v=True)
    kept = []
    handle = projection.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    logits_of(model, other)
    handle.remove()

    def exchange(module, args):
        rows = slice(None) if query is None else query
        changed = args[0].clone()
        changed[:, rows, size : 2 * size] = kept[0][:, rows, size : 2 * size]
        return (changed,)

    handle = projection.register_forward_pre_hook(exchange)
    wanted = logits_of(model)
    handle.remove()
    if family == "gptj":  # weights that were written by hand are kept without values: given as a tensor
        clean = kept[0].unflatten(-1, (4, size)).transpose(1, 2)
    with regard.intervene(model) as run:
        run.patch(layer=1, head=1, query=query, source=clean)
        patched = logits_of(model)
    close(patched, wanted)


def test_patched_weights_and_scores_make_the_clean_weights():
    """With this run's values, and the other run's weights; all scores exchanged are all weights exchanged."""
    model, projection = foreign("gpt2")
    other = IDS.flip(0)
    clean = regard.trace(model, other)
    kept = []
    handle = projection.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    mine = regard.trace(model, IDS, keep_v=True)
    with regard.intervene(model) as run:
        run.patch(layer=1, head=3, source=clean, what="weights")
        by_weights = logits_of(model)
    with regard.intervene(model) as run:
        run.patch(layer=1, head=3, source=clean, what="scores")
        by_scores = logits_of(model)
    handle.remove()
    wanted = torch.stack([clean.layer(1).weights(3, batch=at) @ mine.layer(1).v[at, 3] for at in range(2)])
    close(kept[1].unflatten(-1, (4, 6))[:, :, 3], wanted)
    close(by_scores, by_weights)
    with regard.intervene(model) as run:
        run.patch(layer=1, head=3, source=clean, what="weights", query=2)
        with pytest.raises(ShapeError, match="texts of one length"):
            model(IDS[:, :5])
        model(IDS)


def test_a_patched_last_block_gives_the_clean_logits():
    """What follows the block sees nothing of the corrupted text; one position of it changes that one."""
    model, _ = foreign("qwen3")
    other = IDS.flip(0)
    with regard.intervene(model) as clean:
        clean.keep("model.layers.2")
        wanted = logits_of(model, other)
    with regard.intervene(model) as run:
        run.patch("model.layers.2", source=clean)
        assert torch.equal(logits_of(model), wanted)
    with regard.intervene(model) as run:
        run.patch("model.layers.2", source=clean, query=3)
        one = logits_of(model)
    close(one[:, 3], wanted[:, 3])
    assert torch.equal(one[:, 4], logits_of(model)[:, 4])


def test_generation_with_a_cache_writes_what_whole_passes_write():
    """A key that nobody sees, and a head that is gone, in every step of generate()."""
    model, _ = foreign("qwen3")

    def change(run):
        run.knock_out(layer=0, head=1, key=2)
        run.knock_out(layer=2, query=[4, 8], key=[0, 1])
        run.gate(layer=1, head=0, by=0.3)

    with torch.no_grad(), regard.intervene(model) as run:
        change(run)
        written = model.generate(IDS[:1], max_new_tokens=6, do_sample=False)
        ids = IDS[:1]
        for _ in range(6):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert written.tolist() == ids.tolist()
    assert written.tolist() != model.generate(IDS[:1], max_new_tokens=6, do_sample=False).tolist()


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama", "window", "t5", "linear"])
def test_our_own_models(family):
    """A gate is a factor on what the head's part of the output matrix gets, also where generation would take
    a short cut; linear attention has no edges."""
    loaded = tiny(family)
    model, ids = loaded.model, torch.tensor([[5, 9, 30, 7, 2, 14]])
    given = {"target": torch.tensor([[0, 4, 8]])} if family == "t5" else {}

    def scaled(by: float):
        other = copy.deepcopy(model)
        out = attention_of(other, model.attention_names[1]).out.weight.data.unflatten(1, (6, -1))
        out[:, 4] *= by
        return other

    with torch.no_grad():
        wanted = scaled(0.25)(ids, **given).logits
        with regard.intervene(loaded) as run:
            run.gate(layer=1, head=4, by=0.25)
            close(model(ids, **given).logits, wanted)
    if family in ("gpt2", "llama"):
        with regard.intervene(loaded) as run:
            run.gate(layer=1, head=4, by=0.0)
            written = regard.generate(loaded, [[5, 9, 30]], max_new=5)
        without, silenced = ids[:, :3], scaled(0.0)
        for _ in range(5):
            without = torch.cat([without, silenced(without).logits[:, -1:].argmax(-1)], 1)
        assert list(written.tokens[0]) == without[0, 3:].tolist()
    if family == "linear":
        with regard.intervene(loaded) as run:
            run.knock_out(layer=0, key=1)
            with pytest.raises(UnsupportedError, match="linear attention"):
                model(ids)
            run.clear()


def test_a_trace_inside_shows_layers_before_their_change_and_passes():
    """And those after it as they became by it."""
    model, _ = foreign("gpt2")
    plain = regard.trace(model, IDS)
    for inside in (model, tiny("gpt2")):
        before = regard.trace(inside, IDS)
        with regard.intervene(inside) as run:
            run.knock_out(layer=0, key=0)
            seen = regard.trace(inside, IDS)
        assert seen.checks.passed
        assert torch.equal(seen.layer(0).q, before.layer(0).q)
        assert not torch.allclose(seen.layer(1).q, before.layer(1).q, atol=1e-3)
    with regard.watch(model) as watched, regard.intervene(model) as run:
        run.gate(layer=0, by=0.0)
        logits_of(model)
    assert watched.trace.checks.passed
    assert torch.equal(watched.trace.layer(0).q, plain.layer(0).q)


def test_blocks_within_blocks_and_exceptions_leave_nothing():
    """Both changes are at work inside; after an error the model is as it was."""
    model = NanoGPT().eval()
    plain = model(IDS)
    with regard.intervene(model) as outer:
        outer.gate(layer=0, by=0.5)
        with regard.intervene(model) as inner:
            inner.gate(layer=0, by=0.5)
            twice = model(IDS)
        once = model(IDS)
    with regard.intervene(model) as run:
        run.gate(layer=0, by=0.25)
        quarter = model(IDS)
    close(twice, quarter)
    assert not torch.allclose(once, quarter, atol=1e-4)
    with pytest.raises(IndexError), regard.intervene(model) as run:  # noqa: PT012
        run.gate(layer=0, by=0.0)
        model(IDS + 1000)
    assert torch.equal(model(IDS), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("this_thread", [False, True])
def test_a_change_holds_in_every_thread_or_in_its_own(this_thread):
    model, results = NanoGPT().eval(), []
    plain = model(IDS)
    with regard.intervene(model, this_thread=this_thread) as run:
        run.gate(layer=1, by=0.0)
        run.patch("wte", source=torch.ones(1, 7, 24))
        here = model(IDS)
        thread = threading.Thread(target=lambda: results.append(model(IDS)))
        thread.start()
        thread.join()
    assert not torch.allclose(here, plain, atol=1e-3)
    assert torch.equal(results[0], plain if this_thread else here)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: run.gate(layer=9), "no attention layer 9"),
        (lambda run: run.gate(layer="nowhere"), "no attention layer 'nowhere'"),
        (lambda run: run.gate(layer=-1), "counts from the end"),
        (lambda run: run.gate(layer=0, head=4), "there is no head 4: there are 4"),
        (lambda run: run.knock_out(layer=0, key=7), "no call had query None and key 7"),
        (lambda run: run.knock_out(layer=0, query=7), "no call had query 7"),
        (lambda run: run.gate(layer=0, batch=2), "there is no batch 2: there are 2"),
        (lambda run: run.gate(layer=0, by=torch.ones(3)), r"\(head,\) = \(4,\)"),
        (lambda run: run.gate(layer=0, toward=torch.ones(4, 5)), r"\(head, v_dim\) = \(4, 6\)"),
        (lambda run: run.patch(layer=0, source=torch.ones(2, 4, 6, 6)), r"= \(2, 4, 7, 6\)"),
        (lambda run: run.patch("transformer.nowhere", source=torch.ones(2)), "no module"),
        (lambda run: run.patch("transformer.h.1.mlp", source=torch.ones(2, 3)), r"\(batch, position"),
        (lambda run: run.patch(source=torch.ones(2)), "one of the two"),
        (lambda run: run.patch(layer=0, source=run), "from a trace"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change, words):
    model, _ = foreign("gpt2")

    def changed():
        with regard.intervene(model) as run:
            change(run)
            logits_of(model)

    with pytest.raises((ArgumentError, ShapeError), match=words):
        changed()
    assert torch.equal(logits_of(model), logits_of(model))

"""Importance, ablation, surveys, attribution and pruning curves of models of others, against plain edits."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import regard
from regard.errors import ArgumentError, UnsupportedError
from regard.experiments import ablation, head_means, importance, mean_loss, pruning_curve
from regard.files.loading import load
from regard.heads import logit_attribution, survey, value_weighted
from regard.heads.circuits import projections
from regard.heads.model import layers_of, loaded_of

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 2}
COMMON = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
DECODERS = {
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 0.5}, "attention.dense"),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 6}, "self_attn.o_proj"),
    "opt": ("OPTForCausalLM", {**SIZES, "ffn_dim": 40, "word_embed_proj_dim": 24}, "self_attn.out_proj"),
    "gptj": ("GPTJForCausalLM", {"n_embd": 24, "n_head": 4, "n_layer": 2, "rotary_dim": 4}, "attn.out_proj"),
    "starcoder2": ("Starcoder2ForCausalLM", {**SIZES, "num_key_value_heads": 2}, "self_attn.o_proj"),
    "gemma": ("GemmaForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 6}, "self_attn.o_proj"),
}
TEXTS = [[5, 17, 3, 42, 8, 29, 11], [9, 2, 40, 7, 13]]


def foreign(name):
    torch.manual_seed(4)
    class_name, config, _ = DECODERS[name]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**{**COMMON, **config})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model


def tokenizer():
    words = {f"w{index}": index for index in range(61)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(params=DECODERS, scope="module")
def any_decoder(request):
    return request.param, foreign(request.param)


def plain_loss(model, ids):
    logits = model(torch.tensor([ids[:-1]])).logits[0]
    return float(nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))


@torch.no_grad()
def test_a_head_that_is_gone_costs_what_zeroed_columns_cost(any_decoder):
    """And importance is the slope of the loss in that gate."""
    name, model = any_decoder
    rise = ablation(model, TEXTS, layers=[1])
    before = sum(plain_loss(model, ids) for ids in TEXTS) / 2
    assert mean_loss(model, TEXTS) == pytest.approx(before, rel=1e-5)
    where = next(at for at, _ in model.named_modules() if at.endswith(f"1.{DECODERS[name][2]}"))
    matrix = model.get_submodule(where).weight
    kept = matrix.clone()
    matrix[:, 12:18] = 0
    without = sum(plain_loss(model, ids) for ids in TEXTS) / 2
    matrix.copy_(kept)
    matrix[:, 12:18] *= 1.001
    more = plain_loss(model, TEXTS[0])
    matrix.copy_(kept)
    assert float(rise[1, 2]) == pytest.approx(without - before, abs=2e-5 * before)
    slope = importance(model, TEXTS[:1], normalise=False)[1, 2]
    assert float(slope) == pytest.approx(abs(more - plain_loss(model, TEXTS[0])) / 0.001, rel=0.1, abs=2e-3)


@torch.no_grad()
def test_attribution_adds_up_and_is_what_a_hook_measures(any_decoder):
    """A head's part by hand: its slice of the projection's input, the last norm at the scale it had."""
    name, model = any_decoder
    ids = torch.tensor(TEXTS[:1])
    found = logit_attribution(model, ids, 7, against=9)
    kept, ends = {}, []
    handles = [
        module.register_forward_pre_hook(lambda module, args, at=at: kept.setdefault(at, args[0]))
        for at, module in model.named_modules()
        if at.endswith(DECODERS[name][2])
    ]
    norm = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    handles += [
        part.register_forward_hook(lambda part, args, out: ends.append((part, args[0]))) for part in norm
    ]
    logits = model(ids).logits[0, -1]
    for handle in handles:
        handle.remove()
    assert found.score == pytest.approx(float(logits[7] - logits[9]), rel=1e-4)
    assert float(found.heads.nansum()) + found.rest == pytest.approx(found.score, rel=1e-9)
    last, x = ends[-1]
    direction = (model.get_output_embeddings().weight[7] - model.get_output_embeddings().weight[9]).double()
    x = x.reshape(-1, 24)[-1].double()
    scale = (x.var(unbiased=False) + last.eps).sqrt() if isinstance(last, nn.LayerNorm) else None
    for index, (at, given) in enumerate(sorted(kept.items())):
        matrix = model.get_submodule(at).weight.double()
        for head in range(4):
            written = (
                matrix[:, 6 * head : 6 * head + 6]
                @ given.reshape(-1, 24)[-1, 6 * head : 6 * head + 6].double()
            )
            if scale is not None:
                part = direction @ ((written - written.mean()) / scale * last.weight.double())
            else:
                gain = last.weight.double() + (1 if name == "gemma" else 0)
                eps = getattr(last, "variance_epsilon", None) or last.eps
                part = direction @ (written / (x.square().mean() + eps).sqrt() * gain)
            assert float(found.heads[index, head]) == pytest.approx(float(part), rel=1e-3, abs=1e-4)


def test_what_does_not_reach_the_scores_is_refused():
    """Gemma 2 has norms after its layers, and caps its scores."""
    config = transformers.Gemma2Config(**{**COMMON, **SIZES, "num_key_value_heads": 2, "head_dim": 6})
    model = transformers.Gemma2ForCausalLM(config).eval()
    with pytest.raises(UnsupportedError, match="residual stream"):
        logit_attribution(model, torch.tensor(TEXTS[:1]), 7)
    bert = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**{**COMMON, **SIZES})).eval()
    with pytest.raises(UnsupportedError, match="decoders with a language head"):
        logit_attribution(bert, torch.tensor(TEXTS[:1]), 7)


def test_a_survey_a_curve_and_means_of_a_foreign_model(any_decoder):
    """With a tokenizer of another library; the curve ends where all heads are silent."""
    name, model = any_decoder
    texts = ["w5 w17 w3 w42 w8 w29 w11 w3 w42", "w9 w2 w40 w7 w13 w2 w40"]
    measured = survey(model, texts, n_repeat=1, n_token=6, progress=False, tokenizer=tokenizer())
    assert len(measured.labels()) == 8
    with pytest.raises(ArgumentError, match="has no tokenizer"):
        survey(model, texts, progress=False)
    weights = importance(model, TEXTS)
    curve = pruning_curve(model, TEXTS, weights, shares=(0.0, 1.0))
    silent = [
        model.get_submodule(at).weight for at, _ in model.named_modules() if at.endswith(DECODERS[name][2])
    ]
    kept = [weight.detach().clone() for weight in silent]
    with torch.no_grad():
        for weight in silent:
            weight.zero_()
        nothing = sum(plain_loss(model, ids) for ids in TEXTS) / 2
        for weight, value in zip(silent, kept, strict=True):
            weight.copy_(value)
    assert curve.metric[0] == pytest.approx(mean_loss(model, TEXTS))
    assert curve.metric[1] == pytest.approx(nothing, rel=1e-4)
    means = head_means(model, TEXTS)
    assert means.shape == (2, 4, 6)
    trace = regard.trace(model, torch.tensor(TEXTS[:1]), keep_v=True)
    if name != "gptj":
        weighted = value_weighted(trace, model)
        matrix = next(iter(projections(loaded_of(model)).values())).detach()
        layer = trace.layer(0)
        v = layer.v.repeat_interleave(4 // layer.v.shape[1], 1)
        size = torch.einsum("mv,kv->km", matrix[:, 1], v[0, 1]).norm(dim=-1)
        cells = layer.weights(1) * size
        torch.testing.assert_close(
            weighted.layer(0).weights(1),
            (cells / cells.sum(-1, keepdim=True)).detach(),
            rtol=1e-4,
            atol=1e-6,
        )


def test_a_folder_of_another_type_is_opened_where_it_lives(tmp_path):
    """`load` gives it with its tokenizer; it is traced, generates and answers as transformers' own does."""
    model = foreign("opt")
    model.save_pretrained(tmp_path / "opt")
    tokenizer().save(str(tmp_path / "opt" / "tokenizer.json"))
    loaded = load(tmp_path / "opt")
    assert loaded.facts.family == "opt"
    assert list(layers_of(loaded)) == ["model.decoder.layers.0.self_attn", "model.decoder.layers.1.self_attn"]
    ids = torch.tensor(TEXTS[:1])
    assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    seen = regard.trace(loaded, "w5 w17 w3")
    assert seen.tokens[0] == ("w5", "w17", "w3")
    assert seen.checks.passed
    prompts = [[5, 17, 3, 42], [9, 2]]
    written = regard.generate(loaded, prompts, max_new=4)
    for prompt, tokens in zip(prompts, written.tokens, strict=True):
        wanted = model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False)[0, len(prompt) :]
        assert list(tokens) == wanted.tolist()
    assert regard.generate(loaded, prompts, max_new=4, n_beam=3).tokens
    with pytest.raises(UnsupportedError, match="model of our own"):
        regard.experiments.prune(loaded, [(0, 1)])
    (tmp_path / "opt" / "model.safetensors").unlink()
    with pytest.raises(regard.RegardError, match="transformers cannot open it"):
        load(tmp_path / "opt")

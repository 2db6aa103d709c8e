"""Caches that forget: three papers' policies, against their formulas written plainly over all keys."""

import math

import pytest
import torch
from tiny_models import tiny
from torch.nn import functional as F

from regard.attention.softmax import Attended
from regard.decoding.loop import generate, stream
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import attention
from regard.layers.cache import KVCache
from regard.layers.eviction import Evict
from regard.models import fast
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

N_PROMPT, N_TOKEN = 13, 31
POLICIES = {
    "streaming": Evict("streaming", budget=7, sinks=2, positions="text"),
    "h2o": Evict("h2o", budget=7, recent=3),
    "h2o, late": Evict("h2o", budget=17),  # more than the prompt
    "snapkv": Evict("snapkv", budget=7, recent=3, pool=3),
}
policies = pytest.mark.parametrize("policy", POLICIES)
families = pytest.mark.parametrize("family", ["gpt2", "llama"])


def chosen(evict, held, mass, votes):
    """What stays of `held`, a list of positions: the papers' rules, one list at a time."""
    if len(held) <= evict.budget:
        return held
    if evict.policy == "streaming":
        return held[: evict.sinks] + held[-(evict.budget - evict.sinks) :]
    older, latest = held[: -evict.recent], held[-evict.recent :]
    if evict.policy == "h2o":
        score = {position: float(mass[position]) for position in older}
    else:
        reach = evict.pool // 2
        near = {p: [votes[o] for o in range(p - reach, p + reach + 1) if o in older] for p in older}
        score = {position: float(sum(around)) for position, around in near.items()}
    best = sorted(older, key=lambda position: -score[position])[: evict.budget - evict.recent]
    return sorted(best) + latest


def plain_attention(evict, turned=None):
    """Attention over whole sequences in which a query after the prompt sees only what its head has kept.

    With `turned`, queries and keys come as they are, and stand where they are in the cache.
    """

    def attend(q, k, v, rule, dropout=0.0):
        group = q.shape[1] // k.shape[1]
        out = torch.zeros_like(q)
        for b in range(q.shape[0]):
            for g in range(k.shape[1]):
                heads = slice(g * group, (g + 1) * group)
                out[b, heads] = of_group(q[b, heads], k[b, g], v[b, g])
        return Attended(out, out.new_zeros(out.shape[:3]))

    def of_group(q, k, v):
        scale = 1 / math.sqrt(q.shape[-1])
        place = (lambda x, at: x) if turned is None else turned
        start = torch.arange(N_PROMPT)
        scores = place(q[:, :N_PROMPT], start) @ place(k[:N_PROMPT], start).T * scale
        future = torch.ones(N_PROMPT, N_PROMPT, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        rows = [weights @ v[:N_PROMPT]]
        mass = torch.zeros(q.shape[1])
        mass[:N_PROMPT] = weights.sum((0, 1))
        votes = weights[:, -(evict.recent or 1) :].sum((0, 1))
        held = chosen(evict, list(range(N_PROMPT)), mass, votes)
        for query in range(N_PROMPT, q.shape[1]):
            held = [*held, query]
            at = torch.arange(len(held))
            keys, one = place(k[held], at), place(q[:, query], at[-1:])
            weights = (one @ keys.T * scale).softmax(-1)
            rows.append((weights @ v[held])[:, None])
            mass[held] += weights.sum(0)
            if evict.policy != "snapkv":
                held = chosen(evict, held, mass, None)
        return torch.cat(rows, 1)

    return attend


def read_in_steps(model, tokens, evict, record=None):
    """Scores after the prompt and after each token that follows it."""
    scores, decoding = model.begin(tokens[:, :N_PROMPT], cache=evict, record=record)
    rows = [scores] + [decoding.next(token) for token in tokens[:, N_PROMPT:].T]
    return torch.stack(rows, 1), decoding


@policies
@families
def test_a_cache_that_forgets_gives_what_the_papers_formulas_give(policy, family, monkeypatch):
    """Scores of every token, from single steps and from one pass over all keys with a table of who stays."""
    model, evict = tiny(family).model, POLICIES[policy]
    tokens = torch.randint(0, 263, (2, N_TOKEN))
    got, decoding = read_in_steps(model, tokens, evict)
    with monkeypatch.context() as patch, torch.no_grad():
        full = model(tokens).logits[:, N_PROMPT - 1 :]
        patch.setattr(attention, "attend", plain_attention(evict))
        wanted = model(tokens).logits[:, N_PROMPT - 1 :]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)
    assert not torch.allclose(got, full, atol=1e-2)  # it did forget
    n_held = N_TOKEN - N_PROMPT + 7 if policy == "snapkv" else evict.budget
    assert [layer.length for layer in decoding.cache.layers] == [n_held] * 2
    assert decoding.cache.read == N_TOKEN
    assert all(layer.k.shape[2] == n_held for layer in decoding.cache.layers)


@pytest.mark.parametrize("policy", ["streaming", "h2o"])
def test_positions_in_the_cache_are_those_of_keys_turned_anew(policy, monkeypatch):
    """Keys that stay stand one after the other, the new one behind them (Xiao et al. 2024, 3.2)."""
    model = tiny("llama").model
    evict = (
        Evict("streaming", budget=7, sinks=2) if policy == "streaming" else Evict("h2o", 7, positions="cache")
    )
    tokens = torch.randint(0, 263, (2, N_TOKEN))
    got, _ = read_in_steps(model, tokens, evict)
    rotary = model.rotary
    n_dim = rotary.qk_dim

    def turned(x, positions):
        angle = positions[:, None] * 10_000.0 ** (-torch.arange(0, n_dim, 2) / n_dim)
        real, imaginary = x[..., : n_dim // 2], x[..., n_dim // 2 :]
        if x.dim() == 2 and len(positions) == 1:
            angle = angle[0]
        return torch.cat(
            [real * angle.cos() - imaginary * angle.sin(), real * angle.sin() + imaginary * angle.cos()], -1
        )

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(model, "rotary", None)
        patch.setattr(attention, "attend", plain_attention(evict, turned))
        wanted = model(tokens).logits[:, N_PROMPT - 1 :]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)


@policies
@families
def test_a_budget_that_holds_everything_changes_nothing(policy, family):
    """What is generated is what a full cache gives."""
    model = tiny(family)
    ample = Evict(POLICIES[policy].policy, budget=96)
    whole = generate(model, "the cat sat on", max_new=20)
    assert generate(model, "the cat sat on", max_new=20, cache=ample).tokens == whole.tokens


@policies
@families
@pytest.mark.parametrize("n_beam", [1, 3])
def test_padding_changes_nothing(policy, family, n_beam):
    """Prompts of different lengths give together what they give alone, sampled or searched."""
    model, evict = tiny(family), POLICIES[policy]
    prompts = ["the cat sat on the mat because", "a dog", "it was tired"]
    together = generate(model, prompts, max_new=14, cache=evict, n_beam=n_beam)
    for prompt, tokens in zip(prompts, together.tokens, strict=True):
        alone = generate(model, prompt, max_new=14, cache=evict, n_beam=n_beam)
        assert alone.tokens == (tokens,)


def test_the_fast_steps_are_left_aside(monkeypatch):
    """They know no eviction: none is taken, and one that is asked for refuses."""
    model = tiny("gpt2").model
    tokens = torch.randint(0, 263, (1, N_TOKEN))
    steps = []
    run = fast.Engine.step
    monkeypatch.setattr(fast.Engine, "step", lambda *a, **o: steps.append(run(*a, **o)))
    _, decoding = read_in_steps(model, tokens, POLICIES["h2o"])
    assert not steps
    monkeypatch.undo()
    engine = fast.engine(model)
    assert engine is None or engine.step(model, tokens[:, 0], decoding.cache, None) is None


def test_rotary_positions_in_the_cache_let_a_text_grow_beyond_the_limit():
    """97 positions are the model's limit; in a cache of 16 none stands beyond 16."""
    model = tiny("llama")
    prompt = "the cat sat on the mat"
    short = generate(model, prompt, max_new=120, stop=())
    long = generate(model, prompt, max_new=120, stop=(), cache=Evict("streaming", budget=16))
    assert len(short.tokens[0]) == 97 - len(prompt)
    assert len(long.tokens[0]) == 120
    text = Evict("streaming", budget=16, positions="text")
    assert len(generate(model, prompt, max_new=120, stop=(), cache=text).tokens[0]) == 97 - len(prompt)


def test_a_stream_takes_it_too():
    """Piece by piece what `generate` gives at once."""
    model = tiny("gpt2")
    evict = POLICIES["h2o"]
    pieces = "".join(stream(model, "the cat sat on", max_new=20, cache=evict))
    assert (pieces,) == generate(model, "the cat sat on", max_new=20, cache=evict).texts


def test_a_record_still_gets_every_layer():
    """Who watches a decode sees the keys that were left, and the output is theirs to change."""
    model = tiny("gpt2").model
    seen = []

    def record(name, q, k, v, out, lse, rule):
        seen.append((name, k.shape[2]))

    tokens = torch.randint(0, 263, (1, N_TOKEN))
    watched, _ = read_in_steps(model, tokens, POLICIES["h2o"], record)
    assert seen[:2] == [("decoder.0.self", 13), ("decoder.1.self", 13)]
    assert {n_key for _, n_key in seen[2:]} == {8}
    torch.testing.assert_close(watched, read_in_steps(model, tokens, POLICIES["h2o"])[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "h2o", "budget": 0}, "at least 1. Got 0"),
        ({"policy": "streaming", "budget": 4}, r"at least one position must be left .* sinks=4, budget=4"),
        ({"policy": "streaming", "budget": 4, "sinks": -1}, "Got sinks=-1"),
        ({"policy": "h2o", "budget": 4, "recent": 5}, "at most all of it. Got recent=5, budget=4"),
        ({"policy": "h2o", "budget": 4, "sinks": 1}, "h2o has no 'sinks': it takes recent"),
        ({"policy": "snapkv", "budget": 4, "pool": 2}, "an odd number. Got 2"),
    ],
)
def test_bad_budgets_are_refused(arguments, message):
    """An error says what is wrong, the rule and what was given."""
    with pytest.raises(ArgumentError, match=message):
        Evict(**arguments)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("t5", "reads its prompt with the encoder"),
        ("window", "a window counts positions"),
        ("linear", "a sum of the past"),
    ],
)
def test_models_that_cannot_forget_so_are_refused(family, message):
    """Never silently ignored: a reason instead."""
    with pytest.raises(UnsupportedError, match=message):
        generate(tiny(family), "the cat", cache=Evict("h2o", budget=8))


def test_what_has_no_such_cache_is_refused():
    """A recurrent model keeps none, and only rotary positions move."""
    config = Seq2SeqConfig(source_vocab=11, target_vocab=11, embed_dim=4, hidden_dim=4)
    with pytest.raises(UnsupportedError, match="Seq2Seq has no cache to evict from"):
        generate(Seq2Seq(config).eval(), [[1, 2]], start_token=1, cache=Evict("h2o", budget=8))
    with pytest.raises(ArgumentError, match="only rotary positions can be moved"):
        generate(tiny("gpt2"), "the cat", cache=Evict("h2o", budget=8, positions="cache"))


def test_a_cache_that_let_positions_go_cannot_be_cropped():
    """Its slots are no positions any more."""
    cache = KVCache(1)
    cache[0].append(torch.ones(1, 2, 5, 3), torch.ones(1, 2, 5, 3))
    cache[0].select(torch.tensor([[[0, 4], [1, 2]]]))
    assert cache[0].held.tolist() == [[[0, 4], [1, 2]]]
    assert repr(cache[0]).startswith("LayerCache(2 of 5 positions")
    with pytest.raises(UnsupportedError, match="let positions go"):
        cache.crop(1)


def test_pooling_over_neighbours_is_the_papers_average():
    """Votes 0 9 0 0 over three neighbours become 3 3 3 0: of two places before the window, 0 and 1 or 2."""
    votes = torch.tensor([[[0.0, 9.0, 0.0, 0.1, 0.0, 0.0]]])
    kept = Evict("snapkv", budget=4, recent=1, pool=3).kept(votes)
    pooled = F.avg_pool1d(votes[..., :-1], 3, 1, 1)[0, 0]
    assert kept[0, 0].tolist() == [*sorted(pooled.topk(3).indices.tolist()), 5] == [0, 1, 2, 5]

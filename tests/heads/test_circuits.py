"""Circuits against plain dense products of a tiny model's matrices; splits that sum to what they split."""

import pytest
import torch
from tiny_models import tiny
from torch import nn

from regard.errors import ArgumentError, UnsupportedError
from regard.heads import composition, logit_lens, ov_circuit, qk_circuit, score_split
from regard.heads.circuits import Circuit
from regard.tracing.layers import all_scores
from regard.tracing.take import trace

TEXT = "the cat sat on the mat"
DIM, N_HEAD, HEAD_DIM = 24, 6, 4
families = pytest.mark.parametrize("family", ["gpt2", "llama"])


def model_of(family):
    """A tiny model whose norms and biases do something."""
    model = tiny(family).model
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.weight.uniform_(0.5, 1.5)
            bias = getattr(module, "bias", None)
            if isinstance(bias, torch.Tensor):
                bias.normal_(std=0.3)
    return model


def through(norm, x):
    """Rows of x as matrices read them: centred by a LayerNorm, and weighted; not divided by their length."""
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    return x * norm.weight


def matrices(model, layer, head):
    """W_Q, W_K, W_V and W_O of one head, by slices that know nothing of the layer's own methods."""
    attention = model.decoder.blocks[layer].attention
    shared = head // (N_HEAD // attention.n_kv_head)
    q, o = attention.query.weight.view(N_HEAD, HEAD_DIM, DIM)[head], attention.out.weight
    k, v = (w.view(-1, HEAD_DIM, DIM)[shared] for w in (attention.key.weight, attention.value.weight))
    return q, k, v, o[:, head * HEAD_DIM : (head + 1) * HEAD_DIM]


@families
@torch.no_grad()
def test_an_ov_circuit_is_the_product_of_its_matrices(family):
    """Embedding, norm, values, output projection, last norm and head, for all pairs of tokens."""
    model = model_of(family)
    embedding, norm = model.token.weight, model.decoder.blocks[1].attention_norm
    unembed = embedding if model.unembed is None else model.unembed.weight
    for head in (0, 5):
        _, _, v, o = matrices(model, 1, head)
        wanted = through(model.decoder.norm, through(norm, embedding) @ v.T @ o.T) @ unembed.T
        circuit = ov_circuit(model, 1, head)
        torch.testing.assert_close(circuit.table(), wanted, rtol=1e-4, atol=1e-5)
        best = wanted[7].argmax()
        assert circuit.strongest(7, 1) == [(int(best), pytest.approx(float(wanted[7, best]), rel=1e-4))]
        eigenvalues = torch.linalg.eigvals(wanted.double())
        assert circuit.sign == pytest.approx(
            float(eigenvalues.real.sum() / eigenvalues.abs().sum()), abs=1e-3
        )
        rank = (wanted > wanted.diagonal()[:, None]).sum(1)
        assert circuit.copying(5) == pytest.approx(float((rank < 5).float().mean()), abs=1 / 263)


def test_a_head_that_copies_is_known_by_sign_and_share():
    """A table of ones on the diagonal copies; turned round, it holds back what it sees."""
    copies = Circuit(torch.eye(7), torch.eye(7))
    assert (copies.sign, copies.copying(1)) == (1.0, 1.0)
    holds_back = Circuit(torch.eye(7), -torch.eye(7))
    assert (holds_back.sign, holds_back.copying(6)) == (-1.0, 0.0)
    assert copies.strongest(3, 1) == [(3, 1.0)]


@families
@pytest.mark.parametrize("distance", [0, 3])
@torch.no_grad()
def test_a_qk_circuit_is_the_score_of_two_tokens(family, distance):
    """Scores of normed embeddings, of a rotary key turned back so far."""
    model = model_of(family)
    x = through(model.decoder.blocks[0].attention_norm, model.token.weight)
    q, k, _, _ = matrices(model, 0, 4)
    queries, keys = x @ q.T, x @ k.T
    if family == "llama":
        turn = [model.rotary(torch.full((1, 263), at)) for at in (distance + 5, 5)]
        queries, keys = turn[0](queries[None, None])[0, 0], turn[1](keys[None, None])[0, 0]
    wanted = queries @ keys.T / HEAD_DIM**0.5
    got = qk_circuit(model, 0, 4, distance=distance).table()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
    part = qk_circuit(model, 0, 4, distance=distance).table(slice(3, 8), slice(2, 4))
    torch.testing.assert_close(part, got[3:8, 2:4])


@families
@torch.no_grad()
def test_composition_is_that_of_dense_matrices(family):
    """|B A| / (|B| |A|), every product written out at model_dim x model_dim."""
    model = model_of(family)
    got = composition(model)
    size = torch.linalg.matrix_norm
    for b, a in ((0, 0), (3, 5), (5, 1)):
        norms = [block.attention_norm for block in model.decoder.blocks]
        (q, k, v, o), (_, _, v0, o0) = matrices(model, 1, b), matrices(model, 0, a)
        centre = torch.eye(DIM) - (1 / DIM if isinstance(norms[0], nn.LayerNorm) else 0.0)
        before = [torch.diag(norm.weight) @ centre for norm in norms]
        q, k, v, v0 = q @ before[1], k @ before[1], v @ before[1], v0 @ before[0]
        wrote = o0 @ v0
        for name, reads in (("q", (q.T @ k).T), ("k", q.T @ k), ("v", o @ v)):
            wanted = size(reads @ wrote) / (size(reads) * size(wrote))
            assert float(getattr(got, name)[1, b, 0, a]) == pytest.approx(float(wanted), rel=1e-4), name
    assert bool(got.q[0].isnan().all())
    assert bool(got.q[1, :, 1].isnan().all())


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
@torch.no_grad()
def test_a_logit_lens_ends_in_the_models_own_scores(family):
    """Each layer through the last norm and the head; the last is the output, to the bit."""
    loaded = tiny(family)
    model = loaded.model
    ids = trace(loaded, TEXT).ids
    output = model(ids, return_layers=True)
    lens = logit_lens(loaded, TEXT, position=None)
    assert lens.shape == (3, 1, ids.shape[1], 263)
    assert torch.equal(lens[-1], output.logits)
    stack = model.encoder if family == "bert" else model.decoder
    middle = output.layers[1] if stack.norm is None else stack.norm(output.layers[1])
    if family != "bert":
        torch.testing.assert_close(lens[1], middle @ model.token.weight.T)
    torch.testing.assert_close(logit_lens(loaded, ids, position=4), lens[:, :, 4])


@families
@pytest.mark.parametrize(("layer", "head", "query", "key"), [(1, 5, 17, 4), (1, 0, 9, 9), (0, 2, 12, 0)])
@torch.no_grad()
def test_the_parts_of_a_score_sum_to_it(family, layer, head, query, key):
    """To the model's own score, by both sides and by one, with a name for every part."""
    model = model_of(family)
    ids = trace(tiny(family), TEXT).ids
    split = score_split(model, ids, layer, head, query, key)
    traced = trace(model, ids).layers[layer]
    rows, cols = slice(query, query + 1), slice(key, key + 1)
    q, k, _, rule = traced._part(head, 0)
    score = float(all_scores(q, k, rule, rows, cols))
    assert split.score == pytest.approx(score, rel=1e-4, abs=1e-4)
    assert float(split.parts.sum()) == pytest.approx(split.score, rel=1e-12)
    assert sum(split.query_side.values()) == pytest.approx(split.score, rel=1e-9)
    assert sum(split.key_side.values()) == pytest.approx(split.score, rel=1e-9)
    n_before = 7 * layer  # six heads and a feed-forward layer
    assert len(split.names) == n_before + 2
    assert (split.names[0], split.names[-1]) == ("embedding", "bias")


@torch.no_grad()
def test_a_part_of_a_score_is_what_its_head_wrote():
    """The key's side of head 0.3, worked out from the head's own output, projection and the norm's length."""
    model = model_of("llama")
    ids = trace(tiny("llama"), TEXT).ids
    outs = {}

    def record(name, q, k, v, out, lse, rule):
        outs[name] = (q, out)

    layers = model(ids, record=record, return_layers=True).layers
    _, k, _, _ = matrices(model, 1, 5)
    _, _, _, o = matrices(model, 0, 3)
    written = outs["decoder.0.self"][1][0, 3, 4] @ o.T
    norm, stream = model.decoder.blocks[1].attention_norm, layers[1][0, 4]
    part = written / (stream.square().mean() + norm.eps).sqrt() * norm.weight @ k.T
    part = model.rotary(torch.tensor([[4]]))(part[None, None, None])[0, 0, 0]
    wanted = float(outs["decoder.1.self"][0][0, 5, 17] @ part) / HEAD_DIM**0.5
    got = score_split(model, ids, 1, 5, 17, 4).key_side["head 0.3"]
    assert got == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_models_without_such_circuits_are_refused():
    """With what a circuit needs; so are a hidden key and a key ahead."""
    with pytest.raises(UnsupportedError, match="circuits are of decoders"):
        ov_circuit(tiny("bert"), 0, 0)
    with pytest.raises(UnsupportedError, match="no scores that are products"):
        composition(tiny("linear"))
    with pytest.raises(UnsupportedError, match="one stack"):
        logit_lens(tiny("t5"), TEXT)
    with pytest.raises(ArgumentError, match="key 5 comes after query 2"):
        score_split(tiny("gpt2"), TEXT, 0, 0, 2, 5)
    with pytest.raises(ArgumentError, match=r"at least 0. Got -1"):
        qk_circuit(tiny("gpt2"), 0, 0, distance=-1)
    with pytest.raises(ArgumentError, match="there is no head 6"):
        qk_circuit(tiny("gpt2"), 0, 6)

"""models/seq2seq.py against a loop over single vectors, written from the formulas."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

import regard
from regard.attention.softmax import weights
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

# Both sides compute in float64 and differ in the order of sums of some twenty terms.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
LENGTHS = (7, 2, 5)
CONFIG = Seq2SeqConfig(
    source_vocab=31,
    target_vocab=13,
    embed_dim=17,
    hidden_dim=19,
    n_layer=2,
    attention_dim=23,
    bos=1,
    dropout=0.3,
)
KINDS = [
    pytest.param({"cell": cell, "score": score, "bidirectional": both}, id=f"{cell}-{score}{'-both' * both}")
    for cell in ("gru", "lstm", "rnn")
    for score in ("additive", "dot", "general", "none")
    for both in (False, True)
]
ATTENTIVE = [kind for kind in KINDS if kind.values[0]["score"] != "none"]


def build(**fields):
    """A model in float64 that drops nothing, with weights large enough for sharp alignments."""
    model = Seq2Seq(replace(CONFIG, **fields)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
    return model


def batch_of_sentences(side="right"):
    """Source tokens of different lengths with padding at one side or between, its visibility, the target."""
    source = torch.randint(CONFIG.source_vocab, (3, 7))
    key_mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    if side == "left":
        key_mask = key_mask.flip(1)
    elif side == "between":
        key_mask[1] = torch.tensor([0, 1, 0, 0, 0, 1, 0]).bool()
        key_mask[2] = torch.tensor([1, 1, 0, 1, 0, 1, 1]).bool()
    return source, key_mask, torch.randint(CONFIG.target_vocab, (3, 5))


def step(cell, x, state, p, suffix):
    """One vector through one cell, with the gates in the order torch.nn keeps them."""
    h = state[0]
    from_x = p[f"weight_ih_{suffix}"] @ x + p[f"bias_ih_{suffix}"]
    from_h = p[f"weight_hh_{suffix}"] @ h + p[f"bias_hh_{suffix}"]
    if cell == "rnn":
        return (torch.tanh(from_x + from_h),)
    if cell == "gru":
        (xr, xz, xn), (hr, hz, hn) = from_x.chunk(3), from_h.chunk(3)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        return ((1 - z) * torch.tanh(xn + r * hn) + z * h,)
    i, f, g, o = (from_x + from_h).chunk(4)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def within(parameters, prefix):
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def reference_encode(config, parameters, tokens):
    """Outputs (list of vectors) and last states (one tuple a layer) of a sentence without padding."""
    p = within(parameters, "encoder.recurrent.")
    xs = [parameters["encoder.embedding.weight"][token] for token in tokens]
    n_state = 2 if config.cell == "lstm" else 1
    ends = []
    for layer in range(config.n_layer):
        directions, layer_ends = [], []
        for reverse in ("", "_reverse")[: 1 + config.bidirectional]:
            state, states = (xs[0].new_zeros(config.hidden_dim),) * n_state, []
            for x in reversed(xs) if reverse else xs:
                state = step(config.cell, x, state, p, f"l{layer}{reverse}")
                states.append(state[0])
            directions.append(states[::-1] if reverse else states)
            layer_ends.append(state)
        xs = [torch.cat(at) for at in zip(*directions, strict=True)]
        ends.append(tuple(torch.cat(parts) for parts in zip(*layer_ends, strict=True)))
    if config.bidirectional:
        e = within(parameters, "encoder.")
        if config.score != "none":
            xs = [e["merge_outputs.weight"] @ x + e["merge_outputs.bias"] for x in xs]
        hidden = [torch.tanh(e["merge_hidden.weight"] @ end[0] + e["merge_hidden.bias"]) for end in ends]
        cells = [(e["merge_cell.weight"] @ end[1] + e["merge_cell.bias"],) for end in ends if len(end) > 1]
        ends = [(h, *c) for h, c in zip(hidden, cells or [()] * len(hidden), strict=True)]
    return xs, ends


def reference(model, tokens, target, gate=1.0):
    """Logits (target, vocab) and alignment (target, source) of one sentence without padding."""
    config, parameters = model.config, dict(model.named_parameters())
    outputs, states = reference_encode(config, parameters, tokens)
    fixed, d = states[-1][0], within(parameters, "decoder.")
    all_logits, alignment = [], []
    for token in target:
        query = states[-1][0]
        if config.score == "none":
            context = fixed
        else:
            scores = []
            for output in outputs:
                if config.score == "additive":
                    inner = d["attention.query.weight"] @ query + d["attention.key.weight"] @ output
                    scores.append(d["attention.score"] @ torch.tanh(inner))
                elif config.score == "general":
                    scores.append(query @ (d["attention.key.weight"] @ output))
                else:
                    scores.append(query @ output)
            row = torch.softmax(torch.stack(scores), 0)
            alignment.append(row)
            context = gate * sum(w * output for w, output in zip(row, outputs, strict=True))
        x = torch.cat([context, d["embedding.weight"][token]])
        for layer in range(config.n_layer):
            states[layer] = step(config.cell, x, states[layer], within(d, "recurrent."), f"l{layer}")
            x = states[layer][0]
        all_logits.append(d["out.weight"] @ x + d["out.bias"])
    return torch.stack(all_logits), torch.stack(alignment) if alignment else None


def reference_batch(model, source, key_mask, target, gate=1.0):
    """The reference sentence by sentence, each without its padding."""
    sentences = [row[seen].tolist() for row, seen in zip(source, key_mask, strict=True)]
    return [reference(model, s, t, gate) for s, t in zip(sentences, target.tolist(), strict=True)]


def recorder():
    """A list, and a callback that appends to it what it is given."""
    calls = []
    return calls, lambda *call: calls.append(call)


def test_one_step_worked_by_hand():
    """Outputs 1/2 and -1/2, query -1/2: the second weighs sigmoid(1/2), and the state is tanh(context)."""
    config = Seq2SeqConfig(2, 2, embed_dim=1, hidden_dim=1, cell="rnn", score="dot")
    model = Seq2Seq(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.encoder.embedding.weight[:, 0] = math.atanh(0.5) * torch.tensor([1, -1]).double()
        model.encoder.recurrent.weight_ih_l0[:] = 1
        model.decoder.recurrent.weight_ih_l0[:] = torch.tensor([1.0, 0.0])  # context first, then embedding
        model.decoder.embedding.weight[:] = 3
        model.decoder.out.weight[:, 0] = torch.tensor([1.0, -2.0])
    calls, record = recorder()
    logits = model(torch.tensor([[0, 1]]), torch.tensor([[0]]), record=record).logits
    second = 1 / (1 + math.exp(-0.5))
    h = math.tanh(0.5 * (1 - second) - 0.5 * second)
    assert logits[0, 0].tolist() == pytest.approx([h, -2 * h], rel=1e-12)
    ((_, q, k, _, _, lse, rule),) = calls
    assert torch.exp(rule.scores(q, k)[0, 0, 0, 1] - lse[0, 0, 0]).item() == pytest.approx(second, rel=1e-12)


@pytest.mark.parametrize("fields", KINDS)
def test_logits_and_gradients_equal_the_step_loop(fields):
    """A padded batch gives every sentence the logits, and every weight the gradient, of the plain loop."""
    model = build(**fields)
    source, key_mask, target = batch_of_sentences()
    wanted = torch.stack([logits for logits, _ in reference_batch(model, source, key_mask, target)])
    got = model(source, target, key_mask=key_mask).logits
    torch.testing.assert_close(got, wanted, **CLOSE)
    direction = torch.randn_like(wanted)
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad((got * direction).sum(), list(parameters.values()))
    theirs = torch.autograd.grad((wanted * direction).sum(), list(parameters.values()))
    for name, our, their in zip(parameters, ours, theirs, strict=True):
        largest = their.abs().max().item()
        assert largest > 1e-6, f"{name} plays no part"
        # Terms cancel in single entries of a gradient: what they lose is measured by the largest.
        assert (our - their).abs().max().item() < 1e-10 * largest, name


@pytest.mark.parametrize("fields", KINDS)
def test_every_kind_trains_under_autocast(fields):
    """On any processor: oneDNN's LSTM in half precision, which few have, is not what runs."""
    model = build(**fields).float()
    source, key_mask, target = batch_of_sentences()
    wanted = model(source, target, key_mask=key_mask).logits
    for given in (key_mask, torch.ones_like(key_mask), None):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(source, target, key_mask=given).logits
        if given is key_mask:  # some twenty roundings to 8 bits lie between tokens and logits
            assert (logits - wanted).norm() <= 20 * 2**-9 * wanted.norm()
        logits.float().sum().backward()


@pytest.mark.parametrize("n_layer", [1, 3])
def test_any_number_of_layers_equals_the_step_loop(n_layer):
    """One layer and three, the last one's state asking, give the plain loop's logits."""
    model = build(n_layer=n_layer, cell="lstm", bidirectional=True)
    source, key_mask, target = batch_of_sentences()
    wanted = torch.stack([logits for logits, _ in reference_batch(model, source, key_mask, target)])
    torch.testing.assert_close(model(source, target, key_mask=key_mask).logits, wanted, **CLOSE)


@pytest.mark.parametrize("side", ["left", "between"])
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("score", ["additive", "none"])
def test_padding_may_stand_anywhere(side, both, score):
    """Padding before or between the words is passed over as padding after them is."""
    model = build(bidirectional=both, score=score)
    source, key_mask, target = batch_of_sentences(side)
    wanted = torch.stack([logits for logits, _ in reference_batch(model, source, key_mask, target)])
    torch.testing.assert_close(model(source, target, key_mask=key_mask).logits, wanted, **CLOSE)


@pytest.mark.parametrize("fields", KINDS)
def test_padding_changes_nothing(fields):
    """More padding, and other tokens in it, leave every logit as it was."""
    model = build(**fields)
    source, key_mask, target = batch_of_sentences()
    logits = model(source, target, key_mask=key_mask).logits
    other = torch.where(key_mask, source, (source + 1) % CONFIG.source_vocab)
    longer = torch.cat([other, torch.randint(CONFIG.source_vocab, (3, 4))], 1)
    longer_key_mask = torch.cat([key_mask, torch.zeros(3, 4, dtype=torch.bool)], 1)
    torch.testing.assert_close(model(longer, target, key_mask=longer_key_mask).logits, logits, **CLOSE)


def test_padding_is_never_read():
    """With NaN as the vector of the padding's token, logits and gradients are finite."""
    model = build(bidirectional=True)
    source, key_mask, target = batch_of_sentences()
    source = torch.where(key_mask, source.clamp(min=1), 0)
    with torch.no_grad():
        model.encoder.embedding.weight[0] = math.nan
    logits = model(source, target, key_mask=key_mask).logits
    assert torch.isfinite(logits).all()
    logits.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_all_visible_is_the_same_as_not_saying_so():
    """The packed and the plain way of running the encoder agree where there is no padding."""
    model = build(bidirectional=True, cell="lstm")
    source, _, target = batch_of_sentences()
    said = model(source, target, key_mask=torch.ones(3, 7, dtype=torch.bool)).logits
    torch.testing.assert_close(said, model(source, target).logits, **CLOSE)


@pytest.mark.parametrize("fields", ATTENTIVE)
def test_recorded_alignment_is_every_steps_softmax(fields):
    """One call a step: exp(score - lse) is the loop's weights, 0 on padding, and gives the output."""
    model = build(**fields)
    source, key_mask, target = batch_of_sentences("between")
    calls, record = recorder()
    model(source, target, key_mask=key_mask, record=record)
    names, queries, all_k, all_v, outs, lses, rules = zip(*calls, strict=True)
    assert names == ("decoder.cross",) * 5
    assert model.attention_names == ["decoder.cross"]
    q, out, lse = (torch.cat(parts, 2) for parts in (queries, outs, lses))
    k, v, rule = all_k[0], all_v[0], rules[0]
    assert all(keys is k for keys in all_k)
    qk_dim = 23 if fields["score"] == "additive" else 19
    assert (q.shape, k.shape, v.shape) == ((3, 1, 5, qk_dim), (3, 1, 7, qk_dim), (3, 1, 7, 19))
    recovered = torch.exp(rule.scores(q, k) - lse[..., None])
    torch.testing.assert_close(recovered, weights(q, k, rule), **CLOSE)
    torch.testing.assert_close(recovered @ v, out, **CLOSE)
    for row, seen, (_, alignment) in zip(
        recovered[:, 0], key_mask, reference_batch(model, source, key_mask, target), strict=True
    ):
        torch.testing.assert_close(row[:, seen], alignment, **CLOSE)
        assert (row[:, ~seen] == 0).all()


def test_a_fixed_context_has_no_alignment_to_record():
    """Without attention nothing is recorded, and no layer has a name."""
    model = build(score="none")
    source, _, target = batch_of_sentences()
    calls, record = recorder()
    model(source, target, record=record)
    assert (calls, model.attention_names) == ([], [])


@pytest.mark.parametrize("fields", ATTENTIVE)
def test_keys_are_projected_once_a_sentence(fields):
    """The keys' projection runs once in a forward pass of five steps, and not again while decoding."""
    model = build(**fields)
    source, _, target = batch_of_sentences()
    calls = []
    attention = model.decoder.attention
    project = attention.project_keys
    attention.project_keys = lambda keys: calls.append(keys.shape) or project(keys)
    model(source, target)
    assert calls == [(3, 7, 19)]
    _, decoding = model.begin(source)
    decoding.next(target[:, 0])
    assert calls == [(3, 7, 19)] * 2


def test_a_gate_scales_what_attention_brings():
    """The context is multiplied by the gate at each step, in the forward pass and in decoding."""
    model = build()
    source, key_mask, target = batch_of_sentences()
    reference_logits = reference_batch(model, source, key_mask, target, gate=0.25)
    wanted = torch.stack([logits for logits, _ in reference_logits])
    with regard.intervene(model) as run:
        run.gate(layer=0, by=0.25)
        torch.testing.assert_close(model(source, target, key_mask=key_mask).logits, wanted, **CLOSE)
        first, decoding = model.begin(source, key_mask, start_token=int(target[0, 0]))
        torch.testing.assert_close(first[0], wanted[0, 0], **CLOSE)
        torch.testing.assert_close(decoding.next(target[:, 1])[0], wanted[0, 1], **CLOSE)


def test_one_word_of_the_target_can_be_gated_alone():
    """Word by word the decoder looks; a query is a position in the target."""
    model = build()
    source, _, target = batch_of_sentences()
    plain = model(source, target).logits
    with regard.intervene(model) as run:
        run.gate(layer=0, query=3, by=0.0)
        changed = model(source, target).logits
    torch.testing.assert_close(changed[:, :3], plain[:, :3], **CLOSE)
    assert (changed[:, 3] - plain[:, 3]).abs().max() > 1e-3


@pytest.mark.parametrize("fields", KINDS)
def test_decoding_word_by_word_equals_teacher_forcing(fields):
    """begin and next give the logits, and record the alignment, of one forward pass over the same words."""
    model = build(**fields)
    source, key_mask, target = batch_of_sentences()
    target[:, 0] = CONFIG.bos
    whole, record_whole = recorder()
    wanted = model(source, target, key_mask=key_mask, record=record_whole).logits
    steps, record_step = recorder()
    logits, decoding = model.begin(source, key_mask, record=record_step)
    got = [logits, *(decoding.next(tokens) for tokens in target[:, 1:].unbind(1))]
    torch.testing.assert_close(torch.stack(got, 1), wanted, **CLOSE)
    assert len(steps) == (0 if fields["score"] == "none" else 5)
    for (_, q, k, _, out, lse, rule), step in zip(whole, steps, strict=True):
        torch.testing.assert_close(weights(*step[1:3], step[6]), weights(q, k, rule), **CLOSE)
        torch.testing.assert_close(step[4], out, **CLOSE)
        torch.testing.assert_close(step[5], lse, **CLOSE)


@pytest.mark.parametrize("fields", KINDS)
def test_reordered_sequences_go_on_as_themselves(fields):
    """After reorder, each sequence's next logits are those of the source and words it now stands for."""
    model = build(**fields)
    source, key_mask, target = batch_of_sentences()
    target[:, 0] = CONFIG.bos
    kept = torch.tensor([2, 0, 2, 1])
    new_word = torch.tensor([3, 5, 7, 11])
    _, decoding = model.begin(source, key_mask)
    decoding.next(target[:, 1])
    decoding.reorder(kept)
    got = decoding.next(new_word)
    words = torch.cat([target[kept, :2], new_word[:, None]], 1)
    wanted = model(source[kept], words, key_mask=key_mask[kept]).logits[:, -1]
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_hidden_and_memory_are_what_the_logits_come_from():
    """The output's hidden states give the logits by the last layer; its memory is the encoder's outputs."""
    model = build(bidirectional=True)
    source, _, target = batch_of_sentences()
    output = model(source, target)
    torch.testing.assert_close(model.decoder.out(output.hidden), output.logits, **CLOSE)
    outputs, _ = reference_encode(model.config, dict(model.named_parameters()), source[1].tolist())
    torch.testing.assert_close(output.memory[1], torch.stack(outputs), **CLOSE)


@pytest.mark.parametrize("score", ["additive", "dot"])
def test_dropout_is_for_training_only(score):
    """With one layer only the weights of attention drop: in training two passes differ, else none does."""
    model = build(n_layer=1, score=score)
    source, _, target = batch_of_sentences()
    wanted = torch.stack([reference(model, *pair)[0] for pair in zip(source, target, strict=True)])
    torch.testing.assert_close(model(source, target).logits, wanted, **CLOSE)
    model.train()
    one, two = model(source, target).logits, model(source, target).logits
    assert not torch.allclose(one, two)


def test_config_and_weights_make_the_same_model_again():
    """A config that went through JSON and a state dict give the same logits."""
    model = build(cell="lstm", bidirectional=True, eos=2, pad=0)
    again = Seq2Seq(Seq2SeqConfig.from_dict(json.loads(json.dumps(asdict(model.config))))).double().eval()
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    source, key_mask, target = batch_of_sentences()
    first, second = (m(source, target, key_mask=key_mask).logits for m in (model, again))
    assert torch.equal(first, second)


@pytest.mark.parametrize("score", ["additive", "general"])
def test_it_learns_to_reverse(score):
    """Trained on 29 sentences of different lengths, greedy decoding writes each of them backwards."""
    torch.manual_seed(0)
    config = Seq2SeqConfig(11, 11, embed_dim=16, hidden_dim=32, score=score, bidirectional=True, bos=1, eos=2)
    model = Seq2Seq(config).double()  # in float32 rounding alone decides how soon: 40 to 110 steps
    lengths = torch.randint(2, 6, (29,))
    key_mask = torch.arange(5) < lengths[:, None]
    source = torch.where(key_mask, torch.randint(3, 11, (29, 5)), 0)
    answer = torch.zeros(29, 6, dtype=torch.long)
    for row, length in enumerate(lengths.tolist()):
        answer[row, :length] = source[row, :length].flip(0)
        answer[row, length] = config.eos
    target = torch.cat([torch.full((29, 1), config.bos), answer[:, :-1]], 1)
    counts = torch.arange(6) <= lengths[:, None]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        logits = model(source, target, key_mask=key_mask).logits
        loss = torch.nn.functional.cross_entropy(logits[counts], answer[counts])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        logits, decoding = model.begin(source, key_mask)
        written = [logits.argmax(-1)]
        for _ in range(5):
            written.append(decoding.next(written[-1]).argmax(-1))
    assert torch.equal(torch.stack(written, 1)[counts], answer[counts])

"""Decoding: what is chosen, when it stops, and that batching, padding and caches change nothing."""

import math
from itertools import pairwise

import pytest
import torch

from regard.decoding.loop import Choice, generate, stream
from regard.decoding.masked import fill_mask
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import load


class Chain(torch.nn.Module):
    """A model whose next token depends on the last one only, through a table of scores."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)
        self.eval()

    def begin(self, prompt, key_mask=None, *, start_token=None):
        return self.table[prompt[:, -1]].detach(), self

    def next(self, tokens):
        return self.table[tokens].detach()

    def reorder(self, sequences):
        pass


@pytest.fixture
def chain():
    torch.manual_seed(7)
    return Chain(torch.randn(11, 11) * 2)


def best_by_trying_all(table, start, length, stop, penalty):
    """The best continuation of at most `length` tokens, by listing all of them."""
    log = table.detach().log_softmax(-1)
    best = (-math.inf, ())
    todo = [(0.0, (), start)]
    while todo:
        total, text, last = todo.pop()
        for token in range(table.shape[0]):
            value, n = total + float(log[last, token]), len(text) + 1
            if token == stop or n == length:
                shown = text if token == stop else (*text, token)
                best = max(best, (value / n**penalty, shown))
            else:
                todo.append((value, (*text, token), token))
    return best[1]


def test_greedy_takes_the_likeliest_token_each_time(chain):
    """Each token is the largest score of the row of the one before."""
    last, expected = 4, []
    for _ in range(6):
        last = int(chain.table[last].argmax())
        expected.append(last)
    assert generate(chain, [[4]], max_new=6).tokens == (tuple(expected),)


def test_a_stop_token_ends_a_text_and_is_not_part_of_it(chain):
    """A sequence that stopped stays as it is while the others go on."""
    whole = generate(chain, [[4], [9]], max_new=6)
    stop = whole.tokens[0][2]
    cut = generate(chain, [[4], [9]], max_new=6, stop=[stop])
    for before, after in zip(whole.tokens, cut.tokens, strict=True):
        assert after == (before[: before.index(stop)] if stop in before else before)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_beam_as_wide_as_everything_finds_the_best_text(chain, penalty):
    """With room for every beginning, beam search is exhaustive search."""
    got = generate(chain, [[4], [6]], max_new=3, n_beam=11 * 11 * 2, length_penalty=penalty, stop=[0])
    for start, tokens in zip((4, 6), got.tokens, strict=True):
        assert tokens == best_by_trying_all(chain.table, start, 3, 0, penalty)


def test_log_probabilities_are_those_of_the_text(chain):
    """The score is the sum of the log probabilities of the tokens, the stop token included."""
    got = generate(chain, [[4]], max_new=5)
    log = chain.table.detach().log_softmax(-1)
    path = (4, *got.tokens[0])
    expected = sum(float(log[a, b]) for a, b in pairwise(path))
    assert got.log_probabilities[0] == pytest.approx(expected, abs=1e-4)
    beam = generate(chain, [[4]], max_new=5, n_beam=3)
    path = (4, *beam.tokens[0])
    expected = sum(float(log[a, b]) for a, b in pairwise(path))
    assert beam.log_probabilities[0] == pytest.approx(expected, abs=1e-4)


def test_samples_follow_the_models_probabilities():
    """At temperature 1, tokens come as often as their probabilities say; at 1/2, as their squares."""
    table = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        scores = table.expand(40_000, 4)
        picked = Choice(temperature).pick(scores, generator)
        share = torch.bincount(picked, minlength=4) / 40_000
        expected = (table[0] / temperature).softmax(-1)
        # Four standard errors of a share.
        assert ((share - expected).abs() <= 4 * (expected * (1 - expected) / 40_000).sqrt()).all()


@pytest.mark.parametrize(
    ("choice", "possible"),
    [
        (Choice(1.0, top_k=2), {0, 1}),
        (Choice(1.0, top_k=99), {0, 1, 2, 3}),
        (Choice(1.0, top_p=0.45), {0}),  # 0 alone has 0.5
        (Choice(1.0, top_p=0.79), {0, 1}),  # 0 and 1 together 0.8
        (Choice(1.0, top_p=0.81), {0, 1, 2}),
        (Choice(1.0, top_k=2, top_p=0.99), {0, 1}),
    ],
)
def test_top_k_and_top_p_keep_the_likeliest(choice, possible):
    """Exactly the tokens that should be possible come."""
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(4000, 4)
    assert set(choice.pick(scores, torch.Generator().manual_seed(1)).tolist()) == possible


def test_a_repetition_penalty_divides_positive_scores_and_multiplies_negative_ones():
    """As in Keskar et al. 2019, and only for tokens already there."""
    scores = torch.tensor([[4.0, -4.0, 4.0, -4.0]])
    written = torch.tensor([[1, 0, 1]])
    assert Choice(repetition_penalty=2.0).penalised(scores, written).tolist() == [[2.0, -8.0, 4.0, -4.0]]


def test_sampling_repeats_with_its_seed(chain):
    """The same seed gives the same text, without touching the global random state."""
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, again, other = (
        generate(chain, [[4]], max_new=20, temperature=1.5, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("n_beam", "penalty"), [(1, 1.0), (1, 1.3), (3, 1.0)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_batch_of_prompts_gives_what_each_prompt_gives_alone(small, name, n_beam, penalty):
    """Left padding has no influence: positions count real tokens, padding is not seen."""
    model = small(name)
    prompts = [[5, 17, 101, 9, 33], [77], [3, 200, 41]]
    together = generate(model, prompts, max_new=9, n_beam=n_beam, repetition_penalty=penalty)
    for prompt, tokens in zip(prompts, together.tokens, strict=True):
        assert generate(model, [prompt], max_new=9, n_beam=n_beam, repetition_penalty=penalty).tokens == (
            tokens,
        )


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generating_is_taking_the_best_of_whole_forwards(small, name):
    """Step by step with a cache equals running the whole text again for each token."""
    model = small(name)
    prompt = torch.randint(3, 250, (2, 7))
    got = generate(model, prompt, max_new=6, stop=[], start_token=0).tokens
    text = torch.zeros(2, 1, dtype=torch.long) if name == "t5" else prompt
    for _ in range(6):
        output = model(prompt, text) if name == "t5" else model(text)
        text = torch.cat([text, output.logits[:, -1:].argmax(-1)], dim=1)
    assert got == tuple(tuple(row.tolist()) for row in text[:, -6:])


@pytest.fixture(scope="module")
def small():
    """A small Transformer of a family with weights large enough that its choices are clear."""
    from regard.models.families import FAMILIES, initialise
    from regard.models.transformer import Transformer

    sizes = {
        "gpt2": {"vocab_size": 263, "n_positions": 61, "n_embd": 24, "n_layer": 2, "n_head": 3},
        "llama": {
            "vocab_size": 263,
            "num_hidden_layers": 2,
            "hidden_size": 24,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 40,
        },
        "t5": {"vocab_size": 263, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 3},
    }

    def make(name):
        model = initialise(Transformer(FAMILIES[name].config(sizes[name])), seed=1).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data *= 4
        return model

    return make


def test_streamed_pieces_are_the_generated_text():
    """What `stream` yields piece by piece is what `generate` returns, characters of several bytes whole."""
    model = load("smollm2")
    prompt = "An emoji for a happy face:"
    pieces = list(stream(model, prompt, max_new=12))
    assert "".join(pieces) == generate(model, prompt, max_new=12).texts[0]
    assert len(pieces) > 1


def test_smollm2_knows_the_capital_of_france():
    """The real weights say what they learned."""
    assert "Paris" in generate(load("smollm2"), "The capital of France is", max_new=3).texts[0]


def test_fill_mask_gives_the_probabilities_at_the_mask():
    """Every mask of the text is filled, with the softmax of the logits at its place."""
    model = load("bert", random=True, seed=2)
    mask = model.tokenizer.tokens([model.tokenizer.special.mask])[0]
    filled = fill_mask(model, f"a {mask} b {mask}", top=4)
    assert [each.position for each in filled] == [3, 7]
    ids = [model.tokenizer.special.cls, *b"a ", model.tokenizer.special.mask, *b" b "]
    ids += [model.tokenizer.special.mask, model.tokenizer.special.sep]
    with torch.no_grad():
        expected = model.model(torch.tensor([ids])).logits[0, 7].softmax(-1).topk(4)
    assert filled[1].probabilities == pytest.approx(tuple(expected.values.tolist()))
    assert filled[1].tokens == tuple(model.tokenizer.tokens(expected.indices))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new": 0}, "max_new must be at least 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"n_beam": 0}, "n_beam"),
        ({"n_beam": 2, "temperature": 1.0}, "not both"),
    ],
)
def test_options_that_make_no_sense_are_refused(chain, options, words):
    """Each with its rule and what was given."""
    with pytest.raises(ArgumentError, match=words):
        generate(chain, [[4]], **options)


def test_a_model_in_training_mode_is_refused(chain):
    """Dropout would make the text random without anybody asking for it."""
    with pytest.raises(ArgumentError, match="eval"):
        generate(chain.train(), [[4]])


def test_a_recurrent_model_answers_as_teacher_forcing_says():
    """Greedy and beam search work for seq2seq: start and stop tokens are those of its config."""
    from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig

    torch.manual_seed(5)
    config = Seq2SeqConfig(source_vocab=17, target_vocab=13, embed_dim=7, hidden_dim=11, bos=1, eos=2)
    model = Seq2Seq(config).eval()
    for parameter in model.parameters():
        parameter.data *= 5
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    got = generate(model, prompts, max_new=7)
    for prompt, tokens in zip(prompts, got.tokens, strict=True):
        target = torch.tensor([[1, *tokens]])
        best = model(torch.tensor([prompt]), target).logits[0].argmax(-1).tolist()
        assert tuple(best[: len(tokens)]) == tokens
        assert len(tokens) == 7 or best[len(tokens)] == 2
    wide = generate(model, prompts, max_new=7, n_beam=5, length_penalty=0.0)
    assert all(a >= b - 1e-5 for a, b in zip(wide.log_probabilities, got.log_probabilities, strict=True))


def test_prompts_that_make_no_sense_are_refused(chain):
    """Nothing to start from, text without a tokenizer, a prompt that fills the model."""
    with pytest.raises(ArgumentError, match="empty"):
        generate(chain, [])
    with pytest.raises(ArgumentError, match="empty"):
        generate(chain, [[1], []])
    with pytest.raises(ArgumentError, match="tokenizer"):
        generate(chain, "text")
    with pytest.raises(ArgumentError, match="limit is 1024"):
        generate(load("gpt2", random=True), [[1] * 1024])
    with pytest.raises(UnsupportedError, match="fill_mask"):
        generate(load("minilm", random=True), "text")
    with pytest.raises(UnsupportedError, match="head 'none'"):
        fill_mask(load("minilm"), "a [MASK] sentence")
    with pytest.raises(ArgumentError, match="no mask"):
        fill_mask(load("bert", random=True), "no mask here")

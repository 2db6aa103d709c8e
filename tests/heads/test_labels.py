"""Labels: made-up heads get theirs, chance gets none, and what a threshold says is what is done."""

import math

import pytest
import torch

from regard.heads.chance import LEAST_LIFT, RandomNull
from regard.heads.labels import RULES, grid, label, share_labelled
from regard.heads.measures import measure
from regard.registry import LABELS, OTHER_LABELS
from regard.tracing.traces import Trace

N = 29
IDS = torch.arange(N)
CAUSAL = torch.ones(N, N).tril()


def labelled(weights, tokens=None, ids=IDS):
    layers = Trace.from_weights(weights).layers
    words = tuple(tokens or [f"w{i}" for i in range(N)])
    return label(measure(Trace(layers, (words,), ids=ids[None])))


def looking_at(keys):
    """Query i looks at keys[i] alone."""
    table = torch.zeros(N, N)
    table[torch.arange(N), torch.tensor(keys)] = 1.0
    return table


def test_made_up_heads_get_exactly_their_labels():
    """Previous, next, oneself, the first token, everything alike: each its own, none another's."""
    back = looking_at([max(0, i - 1) for i in range(N)])
    forth = looking_at([min(N - 1, i + 1) for i in range(N)])
    three_back = looking_at([max(0, i - 3) for i in range(N)])
    heads = [back, forth, torch.eye(N), three_back, looking_at([0] * N), torch.full((N, N), 1 / N)]
    # Together they show the future, so the chance level is that of a layer that sees everything.
    measured = [each.label for each in labelled(torch.stack(heads))]
    assert measured == ["previous-token", "next-token", "diagonal", "positional", "sink", "like random"]


def test_heads_that_look_at_kinds_of_tokens():
    """Delimiters, punctuation and rare words, by what the tokens are."""
    tokens = [f"w{i}" for i in range(N)]
    ids = torch.arange(N) % 9 + 100
    tokens[17], tokens[5], tokens[11] = "[SEP]", ".", "once"
    ids[17], ids[5], ids[11] = 1, 2, 999
    rows = [looking_at([place] * N) for place in (17, 5, 11)]
    measured = [each.label for each in labelled(torch.stack(rows), tokens, ids)]
    assert measured[:2] == ["delimiter", "punctuation"]
    # 26 words: three are rare, the token that comes once among them; it alone is looked at.
    assert measured[2] == "rare-word"


def test_copies_make_duplicate_and_induction_heads():
    """Where every token comes twice, looking at the copy or behind it is told apart."""
    ids = torch.cat([torch.arange(14), torch.arange(14), torch.tensor([99])])
    second = range(14, 28)
    at_copy = [i - 14 if i in second else i for i in range(N)]
    behind = [i - 13 if i in second else i for i in range(N)]
    mixed = torch.stack([looking_at(at_copy), looking_at(behind)])
    mixed[:, :14] = CAUSAL[:14] / CAUSAL[:14].sum(-1, keepdim=True)
    assert [each.label for each in labelled(mixed, ids=ids)] == ["duplicate-token", "induction"]


def test_a_head_that_looks_most_behind_a_copy_retrieves():
    """Most of its weight is elsewhere, so it is no induction head: the largest is what counts."""
    ids = torch.cat([torch.arange(14), torch.arange(14), torch.tensor([99])])
    behind = looking_at([i - 13 if i in range(14, 28) else 0 for i in range(N)])
    weights = 0.25 * behind + 0.75 * CAUSAL / CAUSAL.sum(-1, keepdim=True)
    (measured,) = labelled(weights[None], ids=ids)
    assert (measured.label, measured.score) == ("retrieval", 1.0)
    assert 0 < measured.chance < 0.06


def test_a_head_that_sinks_and_recent_tokens_serve_streams():
    """Four first and five last positions hold all weight; a head that sees ahead is not asked."""
    near = torch.zeros(N, N)
    for i in range(N):
        near[i, [0, 1, 2, 3] if i > 3 else [0]] = 1.0
        near[i, max(0, i - 4) : i + 1] = 1.0
    near = near / near.sum(-1, keepdim=True)
    (measured,) = labelled(near[None])
    assert (measured.label, measured.score) == ("streaming", pytest.approx(1.0))
    assert measured.chance == pytest.approx(sum(9 / (i + 1) for i in range(17, N)) / (N - 17))
    ahead = measure(Trace.from_weights(near.flip(0, 1)))
    assert math.isnan(float(ahead["streaming"][0, 0]))


def test_every_label_comes_with_its_score_and_rule():
    """Score, chance and the rule in words; other rules that are met stand beside."""
    (measured,) = labelled(looking_at([max(0, i - 1) for i in range(N)])[None])
    assert (measured.layer, measured.head, measured.score) == ("weights", 0, 1.0)
    assert 0 < measured.chance < 0.2
    assert measured.chance < measured.null < 0.5
    assert measured.rule == (
        f"previous 1.00 >= 0.5, on 100% of the rows; chance is {measured.chance:.2f}, "
        f"and the largest of all heads by chance {measured.null:.2f}"
    )
    assert measured.also == ("positional",)


def test_a_head_that_does_nothing_we_have_a_word_for_is_called_none():
    """Random weights far from uniform differ from chance, and meet no rule: "none" is a label."""
    weights = (2.0 * torch.randn(5, N, N, generator=torch.Generator().manual_seed(3))).softmax(-1)
    assert {each.label for each in labelled(weights)} == {"none"}


def test_two_halves_make_a_mixed_head():
    """0.3 on the previous token and 0.2 on the first are near two thresholds and over none."""
    weights = 0.3 * looking_at([max(0, i - 1) for i in range(N)]) + 0.2 * looking_at([0] * N)
    weights += 0.5 * looking_at([(7 * i + 3) % N for i in range(N)])
    (measured,) = labelled(weights[None])
    assert measured.label == "mixed"
    assert "previous-token" in measured.rule
    assert "sink" in measured.rule
    assert math.isnan(measured.score)


def test_what_chance_gives_is_no_label():
    """In a text of two tokens half of the attention is on the previous one by chance: that is no head."""
    weights = torch.tensor([[[1.0, 0.0], [0.52, 0.48]]])
    (measured,) = label(measure(Trace.from_weights(weights)))
    assert measured.label not in ("previous-token", "sink", "diagonal")


def test_a_score_must_surely_be_above_chance():
    """With a confidence interval that reaches down to chance, a rule is not met."""
    measures = measure(Trace.from_weights(looking_at([max(0, i - 1) for i in range(N)])))
    low = {name: torch.zeros_like(value) for name, value in measures.values.items()}
    high = {name: torch.ones_like(value) for name, value in measures.values.items()}
    assert label(measures)[0].label == "previous-token"
    assert label(measures, low=low, high=high)[0].label not in ("previous-token", "positional")


def test_the_table_of_rules_names_a_source_for_each_threshold():
    """One table: every label that one measure gives, each threshold with a paper or the word ours."""
    assert [rule.label for rule in RULES] == [name for name in LABELS if name not in OTHER_LABELS]
    assert all("et al." in rule.source or rule.source.startswith("ours") for rule in RULES)
    assert len({rule.label for rule in RULES}) == len(RULES)
    assert 0 < LEAST_LIFT < 1


@pytest.mark.parametrize("causal", [True, False])
def test_random_scores_of_any_strength_are_never_labelled(causal):
    """Two hundred heads with random scores, flat and peaked: permuted keys alone rule every label out."""
    generator = torch.Generator().manual_seed(101)
    scores = torch.randn(200, N, N, generator=generator) * torch.linspace(0.5, 4, 200)[:, None, None]
    if causal:
        scores = scores.masked_fill(CAUSAL == 0, -torch.inf)
    shares = share_labelled(labelled(scores.softmax(-1)))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {name for name, share in shares.items() if share} <= {"like random", "none"}


def test_a_short_text_says_too_little_for_a_label():
    """Three rows that look back are what chance gives to one of many heads; thirty are not."""
    for n_row, label_of_it in ((4, "none"), (N, "previous-token")):
        weights = looking_at([max(0, i - 1) for i in range(N)])[:n_row, :n_row]
        assert label(measure(Trace.from_weights(weights)))[0].label == label_of_it


def test_random_weights_set_a_level_that_a_label_must_exceed():
    """A head with 0.6 on the previous token is no previous-token head where random weights reach as much."""
    evenly = CAUSAL / CAUSAL.sum(-1, keepdim=True)
    weights = 0.6 * looking_at([max(0, i - 1) for i in range(N)]) + 0.4 * evenly
    measures = measure(Trace.from_weights(weights))
    quiet, loud = (RandomNull({"previous": lift, "uniformity": 0.9}, 3, 1, N) for lift in (0.01, 0.7))
    assert label(measures, null=quiet)[0].label == "previous-token"
    assert label(measures, null=loud)[0].label != "previous-token"


def test_a_grid_has_a_row_for_each_layer():
    """Labels in the order of layers and heads."""
    measured = labelled(torch.eye(N).expand(3, N, N))
    assert grid(measured, ["weights"]) == [["diagonal"] * 3]

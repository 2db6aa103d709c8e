"""What heads of trained models do, and that random weights of the same shape do none of it."""

import pytest
import torch

from regard.experiments import importance, pruning_curve
from regard.experiments.losses import next_token_loss
from regard.files.loading import load, untrained
from regard.heads import LABELS, measure, repeated_tokens, survey
from regard.heads.labels import share_labelled
from regard.heads.relations import word_attention
from regard.tracing.take import trace

# None of these was looked at when thresholds were chosen.
TEXTS = [
    "The museum, closed since spring, opened its doors on Friday. Hundreds of visitors had waited for it.",
    "If you add sugar too early, the cream will not hold; if you add it too late, it will not be sweet.",
    "Her brother bought a bicycle, rode it to the coast, and sold it there to a man with a dog.",
    "Nobody in the village could say who had built the wall, or why, but everybody had a story about it.",
]


@pytest.fixture(scope="module")
def smollm2():
    return load("smollm2")


@pytest.fixture(scope="module")
def minilm():
    return load("minilm")


@pytest.fixture(scope="module")
def repeated(smollm2):
    """Forty random tokens, twice, as SmolLM2 reads them."""
    return repeated_tokens(smollm2, 40)


def test_smollm2_foresees_what_it_has_seen(smollm2, repeated):
    """On random tokens the loss is that of guessing; on their repetition it falls to a fraction."""
    with torch.no_grad():
        logits = smollm2.model(repeated[None, :-1]).logits[0]
    losses = torch.nn.functional.cross_entropy(logits, repeated[1:], reduction="none")
    first, second = losses[:39].mean(), losses[40:].mean()
    assert first > 9.0  # a guess among 49152 costs 10.8
    assert second < first / 3


def test_smollm2_has_induction_heads_far_above_chance(smollm2, repeated):
    """Layer 18 head 6 and layer 17 head 3 look where the copy went on; a uniform head would have 0.02."""
    measured = measure(trace(smollm2, repeated))
    assert float(measured.chance["induction"][0]) < 0.02
    assert float(measured["induction"][18, 6]) > 0.8
    assert float(measured["induction"][17, 3]) > 0.6
    assert int(measured["induction"].flatten().argmax()) == 18 * 9 + 6
    assert int((measured["induction"] > 0.4).sum()) >= 4


def test_random_weights_have_no_induction_heads(smollm2, repeated):
    """The same measure on the same tokens stays at chance."""
    measured = measure(trace(untrained(smollm2), repeated))
    assert float(measured["induction"].max()) < 2 * float(measured.chance["induction"][0])


def test_smollm2_has_previous_token_and_sink_heads(smollm2):
    """On texts that set no threshold: a few heads look one back, most rest on the first token."""
    labels = survey(smollm2, TEXTS, n_repeat=3, progress=False).labels()
    names = {(int(each.layer.split(".")[1]), each.head): each.label for each in labels}
    assert names[16, 0] == names[11, 1] == "previous-token"
    assert names[18, 6] == names[17, 3] == "induction"
    assert "sink" in next(each for each in labels if each.layer == "decoder.18.self" and each.head == 6).also
    shares = share_labelled(labels)
    assert shares["sink"] > 0.4
    assert 0.005 < shares["previous-token"] < 0.05
    assert shares["none"] > 0.05  # not every head is something


def test_minilm_has_delimiter_heads(minilm):
    """More than a tenth of its heads put half of their weight on [CLS] and [SEP], and one looks one back."""
    labels = survey(minilm, TEXTS, progress=False).labels()
    shares = share_labelled(labels)
    assert shares["delimiter"] > 0.1
    assert [(each.layer, each.head) for each in labels if each.label == "previous-token"] == [
        ("encoder.0.self", 2)
    ]
    assert shares["induction"] == 0.0  # a sentence encoder has no use for it


@pytest.mark.parametrize("name", ["minilm", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_random_weights_get_no_label_that_says_something(name, request):
    """They look everywhere alike, and that is what they are called."""
    loaded = untrained(request.getfixturevalue(name))
    shares = share_labelled(survey(loaded, TEXTS[:2], n_repeat=1, progress=False).labels())
    said = {label: share for label, share in shares.items() if share}
    print(f"random {name}: {said}")
    assert set(said) == {"like random"}


def test_minilms_pronoun_heads_do_not_know_what_it_means(minilm):
    """No head turns from the animal to the street with the sentence's meaning: nothing calls it coreference.

    In each pair one word decides what "it" is. A head that knew would look at another noun in each.
    """
    pairs = [
        ("the animal did not cross the street because it was too {}", "animal", "street", ("tired", "wide")),
        (
            "the trophy did not fit in the suitcase because it was too {}",
            "trophy",
            "suitcase",
            ("big", "small"),
        ),
        ("the ball broke the table because it was made of {}", "ball", "table", ("steel", "glass")),
    ]
    knows = torch.ones(6, 12, dtype=torch.bool)
    for sentence, one, other, endings in pairs:
        prefers_one = []
        for ending in endings:
            measured = trace(minilm, sentence.format(ending))
            tokens = list(measured.tokens[0])
            words = [[tokens.index(each)] for each in ("it", one, other)]
            looks = torch.stack([word_attention(layer, words)[:, 0] for layer in measured.layers])
            prefers_one.append(looks[..., 1] > looks[..., 2])
        knows &= prefers_one[0] & ~prefers_one[1]
    assert not knows.any()
    assert not any("coref" in label or "pronoun" in label for label in LABELS)


def test_gradient_importance_finds_the_induction_heads(smollm2, repeated):
    """On repeated tokens, the heads that foresee matter more than most of their layers."""
    measured = importance(smollm2, [repeated.tolist()], loss=second_half_loss)
    assert int(measured[18].argsort(descending=True).tolist().index(6)) < 3
    assert int(measured[17].argsort(descending=True).tolist().index(3)) < 3


def second_half_loss(model, ids):
    """The loss on the repetition alone."""
    logits = model(ids[:, :-1]).logits[0]
    return torch.nn.functional.cross_entropy(logits[40:], ids[0, 41:])


@pytest.mark.slow
def test_importance_order_is_above_random_above_worst_first(smollm2):
    """Pruning a fifth of SmolLM2's heads: least important first costs least, most important first most."""
    scores = importance(smollm2, TEXTS[:2])
    loss = {
        order: pruning_curve(smollm2, TEXTS[2:], scores, order=order, shares=(0.0, 0.1, 0.2)).metric
        for order in ("least first", "random", "most first")
    }
    assert loss["least first"][0] == loss["random"][0] == loss["most first"][0]
    for index in (1, 2):
        assert loss["least first"][index] < loss["random"][index] < loss["most first"][index]
    with torch.no_grad():
        ids = torch.tensor([smollm2.tokenizer.encode(TEXTS[2])])
        assert float(next_token_loss(smollm2.model, ids)) < 5.0

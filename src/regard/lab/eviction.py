"""A cache that forgets: what it costs on text, what it costs where one fact must be remembered.

On text, SmolLM2 reads with caches of several budgets. Facts are those of the task `recall`, pairs of a key
and a value and then a key, answered by a model that is built by hand: a head that looks at the token before,
and one that looks for the key it is asked for. With all of the past it is always right, so that whatever it
misses, the cache forgot. Where kept keys stand is counted in the cache for windows, and in the text for H2O.
Intervals of the loss are over texts, of lost attention over heads, of recall over questions.
"""

from functools import partial

import torch
from torch import Tensor, nn

from regard.files.loading import Loaded, load
from regard.heads import lost_attention
from regard.lab.spec import Lab, Measurement
from regard.lab.texts import TEXTS
from regard.layers import Block, BlockConfig, Evict
from regard.models import Transformer, TransformerConfig
from regard.tracing import trace
from regard.train.settings import Settings
from regard.train.tasks import generated_task

CLAIM = """A model that reads text needs its first tokens and the latest; one that must remember a fact needs
that fact, and no policy keeps it that does not know what will be asked."""
PREDICTION = """At equal budgets a window without the first tokens costs surely more loss, and more attention,
than one with four of them. A window recalls the facts in its reach, no more; SnapKV recalls nearly all if the
question is in its prompt, and less than half if it is not, with a quarter of the positions."""

N_SYMBOL, N_PAIR = 24, 16
N_WORD = 2 * N_SYMBOL + 1  # values, keys, and the question mark
N_PLACE = 2 * N_PAIR + 4
SHARP = 400.0  # how much a score counts: a match takes all of the attention
SINKS = 4
# Where the parts of a vector stand: the token, the token before it, the answer, the position.
TOKEN, BEFORE, ANSWER = (slice(index * N_WORD, (index + 1) * N_WORD) for index in range(3))
PLACE = slice(3 * N_WORD, 3 * N_WORD + N_PLACE)
POLICIES = {
    "window": partial(Evict, "streaming", sinks=0),
    "sinks and window": partial(Evict, "streaming", sinks=SINKS),
    "H2O": partial(Evict, "h2o"),
    "SnapKV": partial(Evict, "snapkv", recent=2, pool=1),
}


@torch.no_grad()
def built_by_hand() -> Transformer:
    """A Transformer of two layers that answers every question of `recall`."""
    size, dim = PLACE.stop, max(N_WORD, N_PLACE)
    block = BlockConfig(
        size, 1, 1, qk_dim=dim, v_dim=dim, norm="rms", attention_bias=False, ff_bias=False, scale=1.0
    )
    config = TransformerConfig(N_WORD, block, 0, 2, n_position=N_PLACE, tied=False, final_norm=False)
    model = Transformer(config).eval()
    for weight in model.parameters():
        weight.fill_(1.0 if weight.dim() == 1 else 0.0)
    assert model.decoder is not None
    assert model.unembed is not None
    words, places = torch.eye(N_WORD), torch.eye(N_PLACE)
    model.token.weight[:, TOKEN] = words
    model.position.weight[:, PLACE] = places  # type: ignore[union-attr, operator]
    look_back, look_up = (layer.attention for layer in model.decoder.blocks if isinstance(layer, Block))
    # Position p looks for the key that is found at p - 1, and carries that token on.
    look_back.query.weight[:N_PLACE, PLACE] = places * SHARP / size
    look_back.key.weight[:N_PLACE, PLACE] = places.roll(1, 0)
    look_back.value.weight[:N_WORD, TOKEN] = words
    look_back.out.weight[BEFORE, :N_WORD] = words
    # A token looks for itself among the tokens before, and answers with what stands there.
    look_up.query.weight[:N_WORD, TOKEN] = words * SHARP / size
    look_up.key.weight[:N_WORD, BEFORE] = words
    look_up.value.weight[:N_WORD, TOKEN] = words
    look_up.out.weight[ANSWER, :N_WORD] = words
    model.unembed.weight[:, ANSWER] = words
    return model


def _questions(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts of pairs, the questions after them, and the right answers."""
    sizes = {"symbols": N_SYMBOL, "min_words": N_PAIR, "max_words": N_PAIR}
    task = generated_task(Settings.of("recall", sizes))
    (words,) = task.alphabet()
    ids = {word: index for index, word in enumerate(words.split())}
    examples = [task.example(seed, index) for index in range(n)]
    asked = torch.tensor([[ids[word] for word in question.split()] for question, _ in examples])
    return asked[:, :-2], asked[:, -2:], torch.tensor([ids[answer] for _, answer in examples])


@torch.no_grad()
def _recall(lab: Lab, label: str, budget: int | None, examples: tuple[Tensor, Tensor, Tensor]) -> Measurement:
    """The share of right answers; the question comes after the eviction, and before it where it is known."""
    pairs, question, right = examples
    policy, _, known = label.partition(", ")
    prompt = torch.cat([pairs, question], 1) if known else pairs
    evict = POLICIES[policy](budget=budget) if budget else None
    scores, decoding = built_by_hand().begin(prompt, cache=evict)
    for token in question.T:
        scores = decoding.next(token)
    name = f"recall, {label}, budget {budget}" if budget else f"recall, {label}"
    return lab.share_right(name, scores[:, :N_SYMBOL], right)


def _share_in_reach(budget: int) -> float:
    """The share of values that sinks and the latest positions hold, the question mark being the latest."""
    end = 2 * N_PAIR
    held = {*range(SINKS), *range(end - (budget - SINKS - 1), end)}
    return sum(place in held for place in range(1, end, 2)) / N_PAIR


@torch.no_grad()
def _losses(loaded: Loaded, rows: Tensor, evict: Evict | None = None) -> list[float]:
    """The mean loss of each row's tokens but the first, with all of the past or a cache that forgets."""
    scores: Tensor = loaded.model(rows[:, :-1]).logits
    if evict is not None:  # as long as the cache has room nothing goes: so much is read at once
        room = evict.budget
        first, decoding = loaded.transformer.begin(rows[:, :room], cache=evict)
        later = [first, *(decoding.next(token) for token in rows[:, room:-1].T)]
        scores = torch.cat([scores[:, : room - 1], torch.stack(later, 1)], 1)
    losses = nn.functional.cross_entropy(scores.mT, rows[:, 1:], reduction="none")
    return [float(loss) for loss in losses.mean(1)]


def run(lab: Lab) -> None:
    loaded = load("smollm2")
    assert loaded.tokenizer is not None
    n_row, n_token, n_read, budgets = (10, 40, 20, (8,)) if lab.quick else (12, 128, 128, (16, 32, 64))
    texts = [" ".join([*TEXTS[index:], *TEXTS[:index]]) for index in range(n_row)]  # each begins with another
    rows = torch.tensor([loaded.tokenizer.encode(text)[:n_token] for text in texts])
    read = rows[:, :n_read]
    whole = _losses(loaded, read)
    after: dict[tuple[str, int], list[float]] = {}

    def rise(name: str, budget: int) -> Measurement:
        after[name, budget] = _losses(loaded, read, POLICIES[name](budget=budget))
        what = f"rise of the loss, {name}, budget {budget}"
        return lab.difference(what, after[name, budget], whole, "nats")

    some = list(POLICIES)[: 2 if lab.quick else 3]
    rises = {name: [rise(name, budget) for budget in budgets] for name in some}
    title, kept_label = "SmolLM2: log perplexity rises", "positions kept"
    lab.draw.lines(title, budgets, rises, kept_label, "rise, nats a token", log="x")
    traces = [trace(loaded, row[None]) for row in rows[:2]]

    def lost_share(name: str, budget: int) -> Measurement:
        shares = torch.stack([lost_attention(seen, POLICIES[name](budget=budget)) for seen in traces]).mean(0)
        what = f"attention lost, {name}, budget {budget}"
        return lab.mean(what, shares[~shares.isnan()].tolist())

    parts = [n_token * share // 8 for share in (1, 2, 3)]  # a quarter of the prompt, half, three quarters
    lost = {name: [lost_share(name, part) for part in parts] for name in POLICIES}
    title = "SmolLM2: attention lost"
    lab.draw.lines(title, parts, lost, f"{kept_label} of {n_token // 2}", "share, mean over heads")
    examples = _questions(200 if lab.quick else 1000, lab.seed)
    always = _recall(lab, "all kept", None, examples)
    kept = (8, 16, 24) if lab.quick else (8, 12, 16, 20, 24, 28, 32)
    labels = [*list(POLICIES)[1:], "SnapKV, knows the question"]
    recalls = {label: [_recall(lab, label, budget, examples) for budget in kept] for label in labels}
    in_reach = [_share_in_reach(budget) for budget in kept]
    title = "Recall of one of 16 facts"
    ax = lab.draw.lines(title, kept, recalls, f"{kept_label} of {2 * N_PAIR}", "share right")
    lab.draw.predicted(kept, in_reach, "values in reach")
    ax.set_ylim(0, 1.05)
    lab.equal("with all of the past every fact is recalled", always, 1.0)
    for budget, recall, share in zip(kept, recalls["sinks and window"], in_reach, strict=True):
        lab.near(f"{budget} kept: a window recalls what is in reach", recall, share, slack=0.1)
    first = budgets[0]
    bare, with_sinks = after["window", first], after["sinks and window", first]
    gap = lab.difference("window minus sinks and window", bare, with_sinks, "nats")
    lab.above(f"{first} kept: a window alone costs more than one with {SINKS} sinks", gap, 0.0)
    less, least = lost["window"][0], lost["sinks and window"][0]
    lab.above("a window alone loses more attention than one with sinks", less, least)
    known, unknown = recalls["SnapKV, knows the question"][0], recalls["SnapKV"][0]
    lab.above(f"{kept[0]} kept: SnapKV recalls what it knows will be asked", known, 0.9)
    lab.below(f"{kept[0]} kept: SnapKV does not recall what it cannot know", unknown, 0.5)

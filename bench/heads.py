"""What heads cost and what they know: measures against the forward pass's attention, Clark's table, pruning.

    python bench/heads.py [measures | relations | labels | pruning] [--quick]

Each part is a section of the results. The treebank is Universal Dependencies' English EWT. Its files are
looked for in ../shared/data/ud-english, or in the folder that REGARD_UD names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import torch
from timing import (
    Case,
    Goal,
    Options,
    PlainTable,
    RatioTable,
    Row,
    interleaved,
    parse_options,
    peak_memory,
    readable_bytes,
    report,
)
from torch import Tensor, nn

from regard.attention.scores import ScoreRule
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.experiments.losses import importance, pruning_curve, ranked_heads
from regard.experiments.pruning import prune
from regard.files.loading import Loaded, load
from regard.heads.labels import share_labelled
from regard.heads.measures import ROW_MEASURES, measure
from regard.heads.relations import RelationScore, Sentence, read_conllu, score_relations
from regard.heads.surveys import survey
from regard.models.families import initialise
from regard.models.transformer import Transformer
from regard.registry import LABELS
from regard.tracing.layers import LayerTrace
from regard.tracing.take import trace
from regard.tracing.traces import Trace

MEASURES_NOTE = """Six layers of SmolLM2's shape (9 heads, 3 key heads, 64 dimensions), causal,
float32. "attention" is `attend` on the same queries, keys and values, "measures" is every measure of
every head with the chance level of the text, from the trace. "dense" keeps the matrix and takes the
same means from it, as one must with the weights that an eager implementation returns; its time does not
include making the matrix."""

RELATIONS_NOTE = """The head is chosen on EWT's dev part and scored on its test part, so that the best
of many heads is not luck. The baseline is the best fixed offset on the same pairs. In SmolLM2, which is
causal, only pairs that look back are scored. "dependent" rows are dependents looking at their heads,
"head" rows the reverse."""

SHAPE = (9, 3, 64)  # heads, key heads, dimensions: SmolLM2's
N_LAYER = 6
CAUSAL = ScoreRule(visible=Visibility(causal=True))
RELATIONS = ("det", "nsubj", "obj", "amod", "case", "aux", "nmod:poss", "advmod", "mark", "compound", "conj")


def layer_of(n_token: int) -> tuple[Tensor, Tensor, Tensor, Trace]:
    """q, k, v of one layer, and its trace on random tokens with the frequencies of words."""
    n_head, n_kv_head, dim = SHAPE
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, n_head, n_token, dim, generator=generator)
    k, v = (torch.randn(1, n_kv_head, n_token, dim, generator=generator) for _ in range(2))
    lse = attend(q, k, v, CAUSAL).lse
    # Zipf's law: a word of rank r comes with 1 / r, which decides how many copies there are.
    ids = torch.multinomial(1 / torch.arange(1.0, 20_001), n_token, True, generator=generator)[None]
    tokens = tuple(f"w{index}" for index in ids[0].tolist())
    layers = tuple(LayerTrace(f"layer {index}", q, k, lse, CAUSAL) for index in range(N_LAYER))
    return q, k, v, Trace(layers, (tokens,), ids=ids)


def dense_statistics(weights: Tensor, ids: Tensor) -> list[Tensor]:
    """The same means from whole matrices (head, query, key)."""
    n_token = weights.shape[1]
    position = torch.arange(n_token)
    same = (ids[:, None] == ids[None, :]).tril(-1)
    after = torch.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    found = [
        -torch.special.xlogy(weights, weights).sum(-1).mean(-1),
        weights.amax(-1).mean(-1),
        weights[:, :, 0].mean(-1),
        *(weights.diagonal(offset, dim1=-2, dim2=-1).mean(-1) for offset in (-1, 0)),
        (weights * (position[:, None] - position[None]).abs()).sum(-1).mean(-1),
        (weights * same).sum(-1).mean(-1),
        (weights * after).sum(-1).mean(-1),
    ]
    best = weights.argmax(-1)
    found += [(best - position == offset).float().mean(-1) for offset in range(-4, 1)]
    return found


def time_measures(options: Options) -> RatioTable:
    lengths = (256, 512) if options.quick else (1024, 2048, 4096, 8192)
    rows = []
    for n_token in lengths:
        q, k, v, traced = layer_of(n_token)

        def forward(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> object:
            return [attend(q, k, v, CAUSAL) for _ in range(N_LAYER)]

        def measures(traced: Trace = traced) -> object:
            return measure(traced)

        cases: dict[str, Case] = {"attention": forward, "measures": measures}
        if n_token <= 4096:  # 0.6 GiB of weights at 4096
            whole = traced.layers[0].block(None, slice(0, n_token), slice(0, n_token))[0]
            ids = traced.ids
            assert ids is not None

            def dense(whole: Tensor = whole, ids: Tensor = ids[0]) -> object:
                return [dense_statistics(whole, ids) for _ in range(N_LAYER)]

            cases["dense"] = dense
        timings = interleaved(cases, rounds=options.rounds)
        rows.append(Row(f"{n_token} tokens", timings, Goal("measures", "attention", 1.5)))
    return RatioTable(
        "All measures against the attention they are of",
        "attention",
        rows,
        f"{len(ROW_MEASURES)} measures, and their chance levels, of {N_LAYER} layers of 9 heads.",
    )


def build_measures(n_token: int) -> Case:
    """For `peak_memory`: every measure of a layer of this length."""
    measure(layer_of(64)[3])
    traced = layer_of(n_token)[3]
    return lambda: measure(traced)


def build_dense(n_token: int) -> Case:
    """For `peak_memory`: the whole matrices and their means."""
    traced = layer_of(n_token)[3]
    ids = traced.ids
    assert ids is not None
    dense_statistics(layer_of(64)[3].layers[0].block(None, slice(0, 64), slice(0, 64))[0], ids[0, :64])
    everything = slice(0, n_token)
    return lambda: dense_statistics(traced.layers[0].block(None, everything, everything)[0], ids[0])


def weigh_measures(options: Options) -> PlainTable:
    lengths = (256, 512) if options.quick else (1024, 2048, 4096, 8192)
    lines = [["tokens", "measures", "dense"]]
    for n_token in lengths:
        dense = readable_bytes(peak_memory(build_dense, n_token)) if n_token <= 4096 else "-"
        lines.append([str(n_token), readable_bytes(peak_memory(build_measures, n_token)), dense])
    return PlainTable(
        "Peak memory above that of the trace", lines, "Measures grow with the length only. Dense: one layer."
    )


@cache
def model_of(name: str) -> Loaded:
    return load(name)


@cache
def treebank(part: str) -> list[Sentence]:
    folder = Path(os.environ.get("REGARD_UD", Path(__file__).parents[2] / "shared/data/ud-english"))
    return read_conllu(folder / f"en_ewt-ud-{part}.conllu")


def relations_of(name: str, options: Options) -> list[list[str]]:
    """Clark's table: relation, best head, accuracy, best fixed offset."""
    loaded = model_of(name)
    n_sentence = 6 if options.quick else 400
    dev, test = (treebank(part)[:n_sentence] for part in ("dev", "test"))
    lines = []
    for from_head in (False, True):
        chosen = score_relations(loaded, dev, RELATIONS, from_head=from_head)
        scored = score_relations(loaded, test, RELATIONS, from_head=from_head)
        for relation in RELATIONS:
            line = _relation_line(name, chosen[relation], scored[relation], from_head, options.quick)
            if line is not None:
                lines.append(line)
    return lines


def _relation_line(
    name: str, chosen: RelationScore, scored: RelationScore, from_head: bool, quick: bool
) -> list[str] | None:
    least = 1 if quick else 30
    if min(chosen.n_pair, scored.n_pair) < least:
        return None
    layer, head = chosen.best
    accuracy = float(scored.accuracy[layer, head])
    return [
        f"{name}: {chosen.relation}",
        "head" if from_head else "dependent",
        str(scored.n_pair),
        f"{layer}-{head}",
        f"{accuracy:.2f}",
        f"{scored.baseline:.2f} ({scored.offset:+d})",
        "yes" if accuracy > scored.baseline else "no",
    ]


def relation_table(options: Options) -> PlainTable:
    header = ["relation", "who looks", "pairs", "best head", "accuracy", "best offset", "above it"]
    lines = [header, *relations_of("minilm", options), *relations_of("smollm2", options)]
    return PlainTable("Relations, as Clark et al. (2019) score them", lines)


def label_table(options: Options) -> PlainTable:
    """The share of heads each rule labels, trained and random."""
    texts = [sentence.text for sentence in treebank("test") if len(sentence.words) > 12]
    texts = texts[: 2 if options.quick else 24]
    columns = {}
    for name in ("minilm", "smollm2"):
        loaded = model_of(name)
        columns[name] = share_labelled(survey(loaded, texts, progress=False).labels())
        random = Loaded(
            initialise(Transformer(loaded.transformer.config), 0).eval(), loaded.tokenizer, loaded.facts
        )
        columns[f"{name}, random"] = share_labelled(survey(random, texts, progress=False).labels())
    lines = [["label", *columns]]
    lines += [[label, *(f"{100 * shares[label]:.0f} %" for shares in columns.values())] for label in LABELS]
    return PlainTable(
        "Share of heads with each label", lines, f"On {len(texts)} sentences of EWT's test part."
    )


def pruning_tables(options: Options) -> list[RatioTable | PlainTable]:
    """The curve on SmolLM2, and the time of a forward pass of what is left."""
    loaded = model_of("smollm2")
    texts = [sentence.text for sentence in treebank("test") if len(sentence.words) > 12]
    n_text = 2 if options.quick else 16
    scores = importance(loaded, texts[:n_text])
    shares = (0.0, 0.2) if options.quick else (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    orders = ("least first", "random", "most first")
    drawn = [
        pruning_curve(loaded, texts[n_text : 2 * n_text], scores, order=order, shares=shares)
        for order in orders
    ]
    lines = [["heads removed", *orders]]
    for index, share in enumerate(shares):
        lines.append([f"{100 * share:.0f} %", *(f"{each.metric[index]:.3f}" for each in drawn)])
    curve = PlainTable(
        "SmolLM2's loss with heads removed",
        lines,
        f"Nats a token on {n_text} sentences of EWT's test part; importance from {n_text} others.",
    )
    n_token = 128 if options.quick else 1024
    ids = torch.randint(0, 40_000, (1, n_token), generator=torch.Generator().manual_seed(0))
    ranked = ranked_heads(loaded, scores)
    cases: dict[str, Case] = {}
    for share in (0.0, 0.3, 0.6):
        model = prune(loaded, ranked[: round(share * len(ranked))]).transformer

        def forward(model: Transformer = model) -> object:
            with torch.no_grad():
                return model(ids, logits="none")

        cases[f"{100 * share:.0f} % removed"] = forward
    timings = interleaved(cases, rounds=options.rounds)
    speed = RatioTable(
        "A forward pass of what pruning leaves",
        "0 % removed",
        [Row(f"SmolLM2, {n_token} tokens, no logits", timings)],
        "Least important heads first; the feed-forward layers stay whole.",
    )
    return [curve, speed]


def eager_table(options: Options) -> RatioTable:
    """From ids to statistics: a model of `transformers` traced and measured, and as one does it without."""
    from transformers import LlamaConfig, LlamaModel

    n_head, n_kv_head, dim = SHAPE
    config = LlamaConfig(
        vocab_size=20_001,
        hidden_size=n_head * dim,
        intermediate_size=1536,
        num_hidden_layers=N_LAYER,
        num_attention_heads=n_head,
        num_key_value_heads=n_kv_head,
        max_position_embeddings=8192,
    )

    def made(implementation: str) -> nn.Module:
        own = deepcopy(config)
        own._attn_implementation = implementation
        model: nn.Module = LlamaModel(own)
        return model.eval()

    eager, fused = made("eager"), made("sdpa")
    fused.load_state_dict(eager.state_dict())
    rows = []
    for n_token in (128, 256) if options.quick else (512, 1024, 2048):
        ids = layer_of(n_token)[3].ids
        assert ids is not None

        def traced(ids: Tensor = ids) -> object:
            return measure(trace(fused, ids))

        def whole(ids: Tensor = ids) -> object:
            with torch.no_grad():
                attentions = eager(ids, output_attentions=True).attentions
            return [dense_statistics(each[0], ids[0]) for each in attentions]

        cases: dict[str, Case] = {"trace and measures": traced, "eager and dense": whole}
        rows.append(Row(f"{n_token} tokens", interleaved(cases, rounds=options.rounds)))
    return RatioTable(
        "From ids to statistics, a forward pass included",
        "trace and measures",
        rows,
        "A model of `transformers`, six layers of SmolLM2's shape with random weights. Dense statistics are "
        "13 of the measures, without chance levels.",
    )


Part = tuple[str, Callable[[Options], Sequence[RatioTable | PlainTable]], str]
PARTS: dict[str, Part] = {
    "measures": (
        "Heads: measures",
        lambda options: [time_measures(options), weigh_measures(options), eager_table(options)],
        MEASURES_NOTE,
    ),
    "relations": ("Heads: relations", lambda options: [relation_table(options)], RELATIONS_NOTE),
    "labels": ("Heads: labels", lambda options: [label_table(options)], ""),
    "pruning": ("Heads: pruning", lambda options: pruning_tables(options), ""),
}


def main() -> None:
    # A part's name stands before the options that all benches have.
    chosen = [sys.argv.pop(1)] if len(sys.argv) > 1 and sys.argv[1] in PARTS else list(PARTS)
    options = parse_options(__doc__)
    for name in chosen:
        heading, tables, note = PARTS[name]
        report(heading, tables(options), options, note)


if __name__ == "__main__":
    main()

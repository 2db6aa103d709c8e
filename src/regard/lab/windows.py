"""How far a stack of layers sees, each of which looks back over a window (Beltagy et al. 2020, 3.1).

A layer with a window of w sees a token and the w - 1 before it. The layer above sees what those saw, so n
layers reach back over n (w - 1) tokens, and not one further. What arrives from there was averaged n times.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.lab.drawing import draw, finish, level, panels, sweep
from regard.lab.learning import share_right, train
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, equal, near
from regard.layers.block import BlockConfig
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 8
TAUGHT = (2, 4)  # layers and window of the models that are trained


def _model(n_layer: int, window: int) -> Transformer:
    """Tokens, and the same tokens marked as the one to remember."""
    block = BlockConfig(model_dim=32, n_head=2, ff_dim=64, window=window)
    return Transformer(
        TransformerConfig(2 * VOCAB, block, n_decoder_layer=n_layer, positions="rotary", n_position=None)
    )


@torch.no_grad()
def _reach(n_layer: int, window: int) -> int:
    """How far before the last token the first one stands that changes its output at all."""
    model = _model(n_layer, window).double().eval()
    length = n_layer * (window - 1) + 4
    tokens = torch.randint(VOCAB, (length,)).repeat(length, 1)
    changed = tokens.clone()
    changed.diagonal().add_(VOCAB)  # in each row another
    different = (model(changed).hidden[:, -1] != model(tokens).hidden[:, -1]).any(-1)
    return length - 1 - int(different.nonzero()[0])


def _influence(n_layer: int, window: int, n_model: int) -> Tensor:
    """(model, distance): log10 of the gradient that the last output sends so far back."""
    furthest = n_layer * (window - 1)
    rows = []
    for _ in range(n_model):
        model = _model(n_layer, window).double()
        embedded: list[Tensor] = []

        def keep(_: nn.Module, __: object, out: Tensor, embedded: list[Tensor] = embedded) -> None:
            out.retain_grad()
            embedded.append(out)

        model.token.register_forward_hook(keep)
        hidden = model(torch.randint(VOCAB, (16, furthest + 1))).hidden[:, -1]
        (hidden @ torch.randn(hidden.shape[-1], dtype=torch.float64)).sum().backward()
        assert embedded[0].grad is not None
        rows.append(embedded[0].grad.flip(1).norm(dim=-1).mean(0).log10())
    return torch.stack(rows)


def _examples(n: int, distance: int) -> tuple[Tensor, Tensor]:
    """Tokens of which the first is marked, and what it was."""
    tokens = torch.randint(VOCAB, (n, distance + 1))
    right = tokens[:, 0].clone()
    tokens[:, 0] += VOCAB
    return tokens, right


def _recall(distance: int, n_step: int) -> Measurement:
    """The share of marked tokens that the last position says, after training on distances up to this one."""
    model = _model(*TAUGHT)

    def scores(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens).logits[:, -1, :VOCAB]
        return logits

    def loss() -> Tensor:
        tokens, right = _examples(64, int(torch.randint(1, distance + 1, ())))
        return nn.functional.cross_entropy(scores(tokens), right)

    train(model.parameters(), loss, n_step, rate=0.006, clip=True)
    with torch.no_grad():
        tokens, right = _examples(1000, distance)
        return share_right(f"recall, distance {distance}", scores(tokens), right)


def run(quick: bool, seed: int) -> Result:
    n_layers = (1, 2, 3) if quick else (1, 2, 3, 4, 6, 8)
    windows = (2, 5) if quick else (2, 3, 5, 9)
    figure, (reach_ax, influence_ax, recall_ax) = panels(
        "The furthest token that is seen", "Gradient that arrives", "Recall of one marked token"
    )
    reaches = sweep(
        reach_ax,
        n_layers,
        [f"window {window}" for window in windows],
        lambda name, n: Measurement.exact(f"reach, {n} layers, {name}", _reach(n, int(name.split()[1]))),
    )
    checks: list[Check] = []
    for index, (window, measured) in enumerate(zip(windows, reaches.values(), strict=True)):
        predicted = [n_layer * (window - 1) for n_layer in n_layers]
        draw(reach_ax, n_layers, predicted, "_predicted", index, dashed=True)
        checks += [
            equal(f"{point.name} is layers times window less 1", point.value, wanted)
            for point, wanted in zip(measured, predicted, strict=True)
        ]
    finish(reach_ax, "layers", "tokens back")
    n_layer, window = (3, 5) if quick else (8, 5)
    values = _influence(n_layer, window, 8 if quick else 24)
    influence = [
        Measurement.mean(f"log10 gradient, distance {distance}", column)
        for distance, column in enumerate(values.T.tolist())
    ]
    draw(influence_ax, range(len(influence)), influence, f"{n_layer} layers, window {window}", 0)
    finish(influence_ax, "distance", "log10 of its norm")
    edge = Measurement.difference(
        "log10 gradient, edge minus one window back", values[:, -1].tolist(), values[:, window - 1].tolist()
    )
    checks.append(below("from the edge far less arrives than from one window back", edge, -1.0))
    far = TAUGHT[0] * (TAUGHT[1] - 1)
    distances = (far, far + 1) if quick else (1, TAUGHT[1] - 1, TAUGHT[1], far - 1, far, far + 1, far + 4)
    n_step = 200 if quick else 800
    recalls = sweep(
        recall_ax,
        distances,
        [f"{TAUGHT[0]} layers, window {TAUGHT[1]}"],
        lambda _, distance: _recall(distance, n_step),
    )
    level(recall_ax, 1 / VOCAB, "chance", distances[0])
    recall_ax.set_ylim(0, 1.05)
    finish(recall_ax, "distance", "share right")
    at = dict(zip(distances, next(iter(recalls.values())), strict=True))
    checks += [
        above(f"trained, {distance} tokens back are recalled", at[distance], 0.9)
        for distance in distances
        if distance <= far
    ]
    checks += [
        near(f"{distance} back, beyond the reach, chance is all", at[distance], 1 / VOCAB)
        for distance in distances
        if distance > far
    ]
    return Result(
        [*(point for line in reaches.values() for point in line), *influence, edge, *at.values()],
        checks,
        figure,
        f"{n_layers[-1]} layers of window {windows[-1]} see {measured[-1].value:.0f} tokens back; "
        f"{TAUGHT[0]} of window {TAUGHT[1]} recall {at[far].value:.0%} from {far} tokens back and "
        f"{at[far + 1].value:.0%} from {far + 1} (chance {1 / VOCAB:.0%})",
        notes=(
            f"Gradients are those of random models of {n_layer} layers; recall is after {n_step} steps of "
            "training on distances up to that one, a model for each.",
        ),
    )


EXPERIMENT = Experiment(
    "windows",
    "Layers that look back over a window of w tokens see further when stacked: n of them see n (w - 1) back, "
    "not one token more, and little of what is at the edge arrives.",
    "Changing a token changes the last output exactly if it stands at most n (w - 1) back; the gradient from "
    "the edge is surely less than a tenth of that from one window back; a trained stack recalls a token from "
    "the edge of its reach, and one token further it guesses.",
    run,
)

"""How far a stack of layers sees, each of which looks back over a window (Beltagy et al. 2020, 3.1).

A layer with a window of w sees a token and the w - 1 before it. The layer above sees what those saw, so n
layers reach back over n (w - 1) tokens, and not one further. What arrives from there was averaged n times.
Gradients are those of random models; recall is after training on distances up to that one, a model for each.
"""

import torch
from torch import Tensor

from regard.errors import plural
from regard.lab.learning import answered, teach
from regard.lab.spec import Lab, Measurement
from regard.layers import BlockConfig
from regard.models import Transformer, TransformerConfig

CLAIM = """Layers that look back over a window of w tokens see further when stacked: n of them see n (w - 1)
back, not one token more, and little of what is at the edge arrives."""
PREDICTION = """Changing a token changes the last output exactly if it stands at most n (w - 1) back; the
gradient from the edge is surely less than a tenth of that from one window back; a trained stack recalls a
token from the edge of its reach, and one token further it guesses."""

VOCAB = 8
TAUGHT = (2, 4)  # layers and window of the models that are trained
FAR = TAUGHT[0] * (TAUGHT[1] - 1)


def _model(n_layer: int, window: int) -> Transformer:
    """Tokens, and the same tokens marked as the one to remember."""
    block = BlockConfig(model_dim=32, n_head=2, ff_dim=64, window=window)
    return Transformer(TransformerConfig(2 * VOCAB, block, 0, n_layer, positions="rotary", n_position=None))


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


def _influence(n_layer: int, window: int) -> Tensor:
    """log10 of the gradient that the last output of a random model sends back, by distance."""
    model = _model(n_layer, window).double()
    embedded: list[Tensor] = []
    model.token.register_forward_hook(lambda _, __, out: embedded.append(out))
    hidden = model(torch.randint(VOCAB, (16, n_layer * (window - 1) + 1))).hidden[:, -1]
    said = (hidden @ torch.randn(hidden.shape[-1], dtype=torch.float64)).sum()
    gradient: Tensor = torch.autograd.grad(said, embedded)[0]
    norms: Tensor = gradient.flip(1).norm(dim=-1)
    return norms.mean(0).log10()


def _examples(distance: int, n: int = 64) -> tuple[Tensor, Tensor]:
    """Tokens of which the first is marked, and what it was."""
    tokens = torch.randint(VOCAB, (n, distance + 1))
    right = tokens[:, 0].clone()
    tokens[:, 0] += VOCAB
    return tokens, right


def _recall(lab: Lab, distance: int) -> Measurement:
    """The share of marked tokens that the last position says, after training on distances up to this one."""
    model = _model(*TAUGHT)

    def scores(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens).logits[:, -1, :VOCAB]
        return logits

    def examples() -> tuple[Tensor, Tensor]:
        return _examples(int(torch.randint(1, distance + 1, ())))

    teach(model, examples, 200 if lab.quick else 800, scores=scores, rate=0.006)
    return answered(lab, f"recall, distance {distance}", scores, _examples(distance, 1000))


def run(lab: Lab) -> None:
    n_layers = (1, 2, 3) if lab.quick else (1, 2, 3, 4, 6, 8)
    windows = (2, 5) if lab.quick else (2, 3, 5, 9)
    reaches: dict[str, list[Measurement]] = {f"window {window}": [] for window in windows}
    for window in windows:
        for n in n_layers:
            reach = lab.exact(f"reach, {n} layers, window {window}", _reach(n, window))
            reaches[f"window {window}"].append(reach)
            lab.equal(f"{reach.name} is layers times window less 1", reach, n * (window - 1))
    lab.draw.lines("The furthest token that is seen", n_layers, reaches, "layers", "tokens back")
    for index, window in enumerate(windows):
        lab.draw.predicted(n_layers, [n * (window - 1) for n in n_layers], index=index)
    n_layer, window = (3, 5) if lab.quick else (8, 5)
    gradients = torch.stack([_influence(n_layer, window) for _ in range(8 if lab.quick else 24)]).T.tolist()
    influence = lab.means("log10 gradient, distance", dict(enumerate(gradients)))
    lines = {f"{plural(n_layer, 'layer')}, window {window}": influence}
    lab.draw.lines("Gradient that arrives", range(len(influence)), lines, "distance", "log10 of its norm")
    what = "log10 gradient, edge minus one window back"
    edge = lab.difference(what, gradients[-1], gradients[window - 1])
    lab.below("from the edge far less arrives than from one window back", edge, -1.0)
    distances = (FAR, FAR + 1) if lab.quick else (1, TAUGHT[1] - 1, TAUGHT[1], FAR - 1, FAR, FAR + 1, FAR + 4)
    recalls = [_recall(lab, distance) for distance in distances]
    lines = {f"{TAUGHT[0]} layers, window {TAUGHT[1]}": recalls}
    lab.draw.lines("Recall of one marked token", distances, lines, "distance", "share right")
    lab.draw.chance(1 / VOCAB)
    for distance, recall in zip(distances, recalls, strict=True):
        if distance <= FAR:
            lab.above(f"trained, {distance} tokens back are recalled", recall, 0.9)
        else:
            lab.near(f"{distance} back, beyond the reach, chance is all", recall, 1 / VOCAB)

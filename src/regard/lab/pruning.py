"""The loss of a real model against heads removed: least important first, at random, most important first."""

from __future__ import annotations

from regard.files.loading import Loaded, load
from regard.heads import importance, mean_loss, prune, ranked_heads
from regard.lab.drawing import finish, panels, sweep
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below
from regard.lab.texts import TEXTS

ORDERS = ("least first", "random", "most first")


def _losses(loaded: Loaded, texts: tuple[str, ...]) -> list[float]:
    return [mean_loss(loaded, [text]) for text in texts]


def run(quick: bool, seed: int) -> Result:
    loaded = load("smollm2")
    asked, tested = (TEXTS[:2], TEXTS[2:6]) if quick else (TEXTS[:6], TEXTS[6:])
    shares = (0.1,) if quick else (0.1, 0.2, 0.3, 0.4, 0.5)
    n_draw = 1 if quick else 3
    important = importance(loaded, list(asked))
    before = _losses(loaded, tested)
    figure, (ax,) = panels("SmolLM2 without some heads, by importance", width=6.0)
    after: dict[tuple[str, float], list[float]] = {}

    def rise(order: str, share: float) -> Measurement:
        draws = []
        for number in range(n_draw if order == "random" else 1):
            ranked = ranked_heads(loaded, important, order, seed + number)
            draws.append(_losses(prune(loaded, ranked[: round(share * len(ranked))]), tested))
        after[order, share] = [sum(losses) / len(losses) for losses in zip(*draws, strict=True)]
        what = f"rise of the loss, {order}, {share:.0%} removed"
        return Measurement.difference(what, after[order, share], before, "nats")

    rises = sweep(ax, shares, ORDERS, rise)
    finish(ax, "share of heads removed", "rise of the loss, nats a token")
    checks: list[Check] = []
    gaps = []
    for share in shares[:2]:
        late, chance = (
            Measurement.difference(f"{order} minus least first, {share:.0%}",
                                   after[order, share], after["least first", share], "nats")
            for order in ("most first", "random")
        )  # fmt: skip
        gaps += [late, chance]
        checks += [
            above(f"{share:.0%} removed: taking important heads first costs more", late, 0.0),
            above(f"{share:.0%} removed: on average, random heads cost more than unimportant ones",
                  Measurement.exact(chance.name, chance.value), 0.0),
        ]  # fmt: skip
    checks.append(below(f"{shares[0]:.0%} can go for less than half a nat", rises["least first"][0], 0.5))
    first = {order: rises[order][0].value for order in ORDERS}
    return Result(
        [*(rise for in_order in rises.values() for rise in in_order), *gaps],
        checks,
        figure,
        f"without {shares[0]:.0%} of its heads the loss rises by {first['least first']:.2f} nats if the "
        f"least important go, {first['random']:.2f} at random and {first['most first']:.2f} if the most "
        "important go",
        notes=(
            f"Importance from {len(asked)} texts, the loss of {len(tested)} others; intervals are over "
            "texts.",
        ),
    )


EXPERIMENT = Experiment(
    "pruning",
    "Many heads of a trained model can be removed at little cost if importance says which; the same number "
    "of important heads costs far more.",
    "With a tenth of SmolLM2's heads gone, least important first costs less than half a nat, less than "
    "random heads on average, and surely less than the most important first.",
    run,
    needs=("smollm2",),
)

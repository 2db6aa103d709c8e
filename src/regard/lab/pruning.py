"""The loss of a real model against heads removed: least important first, at random, most important first.

Importance is taken from some texts, the loss from others; intervals are over texts.
"""

from regard.experiments import importance, mean_loss, prune, ranked_heads
from regard.files.loading import Loaded, load
from regard.lab.spec import Lab, Measurement
from regard.lab.texts import TEXTS

CLAIM = """Many heads of a trained model can be removed at little cost if importance says which; the same
number of important heads costs far more."""
PREDICTION = """With a tenth of SmolLM2's heads gone, least important first costs less than half a nat, less
than random heads on average, and surely less than the most important first."""

ORDERS = ("least first", "random", "most first")


def run(lab: Lab) -> None:
    loaded = load("smollm2")
    asked, tested = (TEXTS[:2], TEXTS[2:6]) if lab.quick else (TEXTS[:6], TEXTS[6:])
    shares = (0.1,) if lab.quick else (0.1, 0.2, 0.3, 0.4, 0.5)
    n_draw = 1 if lab.quick else 3

    def losses(loaded: Loaded) -> list[float]:
        return [mean_loss(loaded, [text]) for text in tested]

    important, before = importance(loaded, list(asked)), losses(loaded)
    after: dict[tuple[str, float], list[float]] = {}

    def rise(order: str, share: float) -> Measurement:
        draws = []
        for number in range(n_draw if order == "random" else 1):
            ranked = ranked_heads(loaded, important, order, lab.seed + number)
            draws.append(losses(prune(loaded, ranked[: round(share * len(ranked))])))
        after[order, share] = [sum(of_text) / len(of_text) for of_text in zip(*draws, strict=True)]
        what = f"rise of the loss, {order}, {share:.0%} removed"
        return lab.difference(what, after[order, share], before, "nats")

    rises = {order: [rise(order, share) for share in shares] for order in ORDERS}
    title = "SmolLM2 without some heads, by importance"
    lab.draw.lines(title, shares, rises, "share of heads removed", "rise of the loss, nats a token")
    for share in shares[:2]:
        least = after["least first", share]
        late, chance = (
            lab.difference(f"{order} minus least first, {share:.0%}", after[order, share], least, "nats")
            for order in ("most first", "random")
        )
        lab.above(f"{share:.0%} removed: taking important heads first costs more", late, 0.0)
        what = f"{share:.0%} removed: on average, random heads cost more than unimportant ones"
        lab.above(what, chance, 0.0)
    lab.below(f"{shares[0]:.0%} can go for less than half a nat", rises["least first"][0], 0.5)

"""What the drive of `seq2seq-decoder` calls, and the weights of its GRU."""

from typing import Any

from torch import Tensor

from regard.checking.trials import Draw, View


class FormulaDecoder:
    """A decoder whose steps are formulas."""

    def __init__(self, formulas: View) -> None:
        self.formulas = formulas

    def init_state(self, encoded: tuple[Tensor, Tensor], lengths: Tensor | None) -> list[Any]:
        """The state before the first word."""
        outputs, hidden = encoded
        self.memory = self.formulas.memory(outputs)
        seen = outputs if self.formulas.layout == "time first" else self.memory
        return [seen, self.formulas.start(hidden), lengths]

    def __call__(self, ids: Tensor, state: list[Any]) -> Any:
        """Logits (batch, step, vocab) and the state afterwards."""
        return self.formulas.called(self.memory, ids, *state)


def drawn_weights(draw: Draw, n_layer: int, hidden: int, embed: int) -> dict[str, Tensor]:
    """The weights of all layers by their names."""
    weights = {}
    for layer in range(n_layer):
        for part, size in {"ih": hidden if layer else hidden + embed, "hh": hidden}.items():
            weights[f"rnn.weight_{part}_l{layer}"] = draw.weight(3 * hidden, size) * 1.5
            weights[f"rnn.bias_{part}_l{layer}"] = draw.normal(3 * hidden, scale=0.3)
    return weights

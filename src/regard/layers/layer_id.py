"""Which attention layer of a model is meant: its stack, its index there and its kind.

    decoder.23.self             a layer of ours: stack "decoder", index 23, kind "self"
    decoder.cross               of a recurrent decoder, which has no layers to count
    transformer.h.23.attn       a module of anybody's model: stack "transformer.h", index 23
    albert_layers.0.attn#5      the fifth call of one module in one run

The text is the stable form: files, JSON and the page hold it, and it is taken apart here and nowhere else. A
person reads the label, "layer 23", with stack and kind only where a model has several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["self", "cross"]

_OURS = re.compile(r"(encoder|decoder)(?:\.(\d+))?\.(self|cross)")
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class LayerId:
    """The identity of an attention layer.

    >>> str(LayerId("decoder", 23, "self")), LayerId.parse("h.3.attn#2").call
    ('decoder.23.self', 2)

    Attributes:
        stack: The stack of layers it stands in: "encoder" or "decoder", or the path of a module.
        index: Its place in that stack, counted from 0; None where it stands in none.
        kind: "self", or "cross" where queries and keys are of different sequences.
        module: The path of its module, in a model that is not ours.
        call: Which call of the module it is in one run of the model, counted from 1.
    """

    stack: str
    index: int | None
    kind: Kind = "self"
    module: str = ""
    call: int = 1

    @classmethod
    def parse(cls, text: str, kind: Kind | None = None) -> LayerId:
        """Return the identity that a text names: of a layer of ours, or the path of anybody's module.

        Args:
            text: The stable form, as `str` gives it.
            kind: Of a module, whose path does not say it. Default: what the text says, else "self".
        """
        module, _, call = text.partition("#")
        n_call = int(call) if call.isdigit() else 1
        ours = _OURS.fullmatch(module)
        if ours:
            stack, number, said = ours.groups()
            said_kind: Kind = "cross" if said == "cross" else "self"
            return cls(stack, None if number is None else int(number), kind or said_kind, "", n_call)
        number = _NUMBER.search(module)
        stack = module if number is None else module[: number.start()]
        return cls(stack, None if number is None else int(number[1]), kind or "self", module, n_call)

    def __str__(self) -> str:
        index = "" if self.index is None else f".{self.index}"
        text = self.module or f"{self.stack}{index}.{self.kind}"
        return text if self.call == 1 else f"{text}#{self.call}"

    @property
    def block(self) -> str | None:
        """The path of the innermost numbered module around it; None where there is none."""
        ends = [number.end() for number in _NUMBER.finditer(self.module)]
        return self.module[: ends[-1]] if ends else None


def nth_call(name: str, seen: Iterable[str]) -> str:
    """Return the name of a module's next call in a run after those `seen`: `name#2` for the second.

    >>> nth_call("attn", ["attn", "other", "attn#2"])
    'attn#3'
    """
    before = sum(other.partition("#")[0] == name for other in seen)
    return f"{name}#{before + 1}" if before else name


def layer_labels(layers: Sequence[LayerId]) -> list[str]:
    """Return what a person calls each of a model's layers: "layer 23", and no more than tells them apart.

    >>> layer_labels([LayerId("decoder", 0), LayerId("decoder", 1)])
    ['layer 0', 'layer 1']
    >>> layer_labels([LayerId("encoder", 0), LayerId("decoder", 0), LayerId("decoder", 0, "cross")])
    ['encoder layer 0', 'decoder layer 0', 'decoder layer 0 cross']
    """
    kinds = {layer.kind for layer in layers}
    # A number alone must be the one that chooses the layer. Where a model has attention in some of its
    # blocks only, or in several stacks, the stack says whose number it is.
    plain = len({layer.stack for layer in layers}) == 1 and len(kinds) == 1
    plain = plain and [layer.index for layer in layers] == list(range(len(layers)))
    labels = []
    for layer in layers:
        if layer.index is None:
            labels.append(str(layer))
            continue
        stack = "" if plain or not layer.stack else f"{layer.stack} "
        cross = " cross" if len(kinds) > 1 and layer.kind == "cross" else ""
        call = "" if layer.call == 1 else f", call {layer.call}"
        labels.append(f"{stack}layer {layer.index}{cross}{call}")
    several = Counter(labels)
    return [name if several[name] == 1 else str(layer) for name, layer in zip(labels, layers, strict=True)]

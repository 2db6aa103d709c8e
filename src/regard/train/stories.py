"""Short children's stories from a grammar: a text for small language models that costs nothing to make.

    python -m regard.train.stories --stories 60000 > stories.txt

A story is a pure function of (seed, index). `stories.toml` holds the grammar: words, rules and plots. Names,
things and made-up words come back within a story, and pronouns refer to people of both genders, so that there
is something for attention to find.
"""

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from regard.errors import ArgumentError

_CHOICE = re.compile(r"\[([^\[\]]*)\]")  # the innermost brackets
_RULE = re.compile(r"<(\w+)>")
_PRONOUNS = {"girl": ("she", "her", "her", "herself"), "boy": ("he", "him", "his", "himself")}
_ANIMAL_SHARE = 0.15  # of all characters


@dataclass(frozen=True, slots=True)
class Grammar:
    """Words by kind, rules and plots; each rule and plot is a list of lines."""

    words: Mapping[str, tuple[str, ...]]
    rules: Mapping[str, tuple[str, ...]]
    plots: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Character:
    """Somebody in a story; prints as the name."""

    name: str
    kind: str  # girl, boy, or an animal
    he: str
    him: str
    his: str
    himself: str

    def __str__(self) -> str:
        return self.name

    @property
    def He(self) -> str:  # in the grammar a capital letter begins a sentence
        """Return the pronoun as a sentence begins with it."""
        return self.he.capitalize()

    @property
    def His(self) -> str:
        """Return the possessive as a sentence begins with it."""
        return self.his.capitalize()


@dataclass(frozen=True, slots=True)
class Thing:
    """A noun of a story, with an adjective or without; prints as the noun."""

    noun: str
    color: str = ""

    def __str__(self) -> str:
        return self.noun

    @property
    def full(self) -> str:
        """Return the noun with its adjective: "red ball"."""
        return f"{self.color} {self.noun}".strip()

    @property
    def a(self) -> str:
        """Return it with an article: "a red ball"."""
        return f"{'an' if self.full[0] in 'aeiou' else 'a'} {self.full}"

    @property
    def A(self) -> str:
        """Return it with an article, as a sentence begins: "A red ball"."""
        return self.a.capitalize()


@cache
def grammar() -> Grammar:
    """Read the grammar that ships with Regard."""
    with (Path(__file__).parent / "stories.toml").open("rb") as file:
        parts = tomllib.load(file)
    return Grammar(
        words={kind: tuple(words.split()) for kind, words in parts["words"].items()},
        rules={name: tuple(text.strip().splitlines()) for name, text in parts["rules"].items()},
        plots={name: tuple(text.strip().splitlines()) for name, text in parts["plots"].items()},
    )


def story(seed: int, index: int) -> str:
    """Return one story, the same for ever.

    Args:
        seed: Which stream of stories.
        index: Which story of it.

    Returns:
        One paragraph, without a line break.

    Example:
        >>> story(0, 0) == story(0, 0) != story(0, 1)
        True
    """
    # A string seeds by all its bytes, so that seed 1, index 12 and seed 11, index 2 differ.
    random = Random(f"stories {seed} {index}")
    source = grammar()
    lines = source.plots[random.choice(list(source.plots))]
    told = [line.removeprefix("?") for line in lines if not line.startswith("?") or random.random() < 0.5]
    return _expanded(" ".join(told), source, random).format(**_cast(source, random))


def stories(n: int, seed: int = 0) -> Iterator[str]:
    """Yield `n` different stories.

    Args:
        n: How many.
        seed: Which stream of stories.

    Yields:
        One paragraph after the other. A story that came before is left out.

    Raises:
        ArgumentError: If `n` is negative.
    """
    if n < 0:
        raise ArgumentError(f"the number of stories must be at least 0. Got {n}.")
    seen: set[str] = set()
    index = 0
    while len(seen) < n:
        text = story(seed, index)
        index += 1
        if text not in seen:
            seen.add(text)
            yield text


def _cast(source: Grammar, random: Random) -> dict[str, object]:
    """Draw who and what a story is about."""
    words = source.words
    girls = random.sample(words["girls"], 3)
    boys = random.sample(words["boys"], 3)
    cast: dict[str, object] = {}
    for role in "abc":
        gender = random.choice(("girl", "boy"))
        name = (girls if gender == "girl" else boys).pop()
        kind = random.choice(words["animals"]) if random.random() < _ANIMAL_SHARE else gender
        cast[role] = Character(name, kind, *_PRONOUNS[gender])
    adjectives = words["colors"] + words["looks"]
    nouns = random.sample(words["things"], 5)
    colors = random.sample(words["colors"], 2)
    cast["x"] = Thing(nouns[0], colors[0])
    cast["y"] = Thing(nouns[1], random.choice(adjectives))
    cast["food"] = Thing(random.choice(words["foods"]))
    cast["animal"] = Thing(random.choice(words["animals"]))
    cast["place"], cast["place2"] = random.sample(words["places"], 2)
    today = random.randrange(7)
    cast["day"] = words["days"][today]
    cast["tomorrow"] = words["days"][(today + 1) % 7]
    cast["number"] = random.choice(words["numbers"])
    cast["word"] = random.choice(words["words"])
    packed = [Thing(noun).a for noun in nouns[2:]]
    listed = f"{packed[0]}, {packed[1]} and {packed[2]}"
    cast["list"] = listed
    cast["List"] = "A" + listed[1:]  # as a sentence begins
    cast["chant"] = _chant(words, random)
    return cast


def _chant(words: Mapping[str, tuple[str, ...]], random: Random) -> str:
    """Draw three to six words that mean nothing together: what follows them can only be copied."""
    if random.random() < 0.5:
        known = [word for kind, kinds in words.items() if kind != "syllables" for word in kinds]
        return " ".join(random.sample(known, random.randint(3, 6)))
    return " ".join(
        "".join(random.sample(words["syllables"], random.randint(1, 3))) for _ in range(random.randint(3, 6))
    )


def _expanded(text: str, source: Grammar, random: Random) -> str:
    """Replace rules and choices by draws until none is left."""
    while True:
        text, n_rule = _RULE.subn(lambda match: random.choice(source.rules[match[1]]), text)
        text, n_choice = _CHOICE.subn(lambda match: random.choice(match[1].split("|")), text)
        if not n_rule + n_choice:
            return text


def main() -> None:
    """Print stories, a blank line after each."""
    parser = argparse.ArgumentParser(description="Print short children's stories from a grammar.")
    parser.add_argument("--stories", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="which stream of stories (default: 0)")
    options = parser.parse_args()
    for text in stories(options.stories, options.seed):
        print(text, end="\n\n")


if __name__ == "__main__":
    main()

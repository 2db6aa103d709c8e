"""Generated tasks: each example is a pure function of (seed, index), so a place in the data is a number.

`dates` turns a date as people write it into ISO 8601. `copy`, `reverse` and `sort` are what they say of a
row of words. `recall` asks for the value that once stood beside a key, however far back.

Held-out examples are chosen by what they hold, not by their index: training never sees them. For `dates`
that is the calendar date, so none of the ways of writing a held-out date occurs in training.
"""

import datetime
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

from regard.errors import ArgumentError, UnsupportedError
from regard.train.settings import GENERATED, Settings

Pair = tuple[str, str]

LOCALES = """
    en_US en_GB en_AU de_DE fr_FR es_ES it_IT pt_PT pt_BR nl_NL sv_SE da_DK nb_NO fi_FI pl_PL cs_CZ hu_HU
    ro_RO tr_TR id_ID ru_RU uk_UA el_GR ca_ES vi_VN ja_JP zh_Hans_CN ko_KR
""".split()
FIRST, LAST = datetime.date(1900, 1, 1).toordinal(), datetime.date(2099, 12, 31).toordinal()
HELD_OUT = 10  # one in so many


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """An endless supply of examples, those for training and those held out."""

    name: str
    make: Callable[[Random, bool], Pair]  # (random numbers, held out) -> (source, target)
    alphabet: Callable[[], Sequence[str]]  # texts in which every token of the task occurs

    def example(self, seed: int, index: int, *, held_out: bool = False) -> Pair:
        """Return the example of that index; the same for ever."""
        # A string seeds by all its bytes, so that seed 1, index 12 and seed 11, index 2 differ.
        return self.make(Random(f"{self.name} {seed} {index} {held_out}"), held_out)


def generated_task(settings: Settings) -> GeneratedTask:
    """Return the task that settings name.

    >>> reverse = generated_task(Settings.of("reverse"))
    >>> source, target = reverse.example(seed=0, index=3)
    >>> source.split()[::-1] == target.split()
    True
    """
    name = settings.task
    if name not in GENERATED:
        raise ArgumentError(f"{name} is not a generated task: {', '.join(GENERATED)} are.")
    if name == "dates":
        return GeneratedTask(name, _date, _date_alphabet)
    words = [str(number) for number in range(settings.symbols)]
    if name == "recall":
        words += [*(f"k{word}" for word in words), "?"]
    make = partial(_recall if name == "recall" else _row, settings)
    return GeneratedTask(name, make, lambda: [" ".join(words)])


def is_held_out(text: str) -> bool:
    """Return whether what this text names is kept from training; the same on every machine."""
    return zlib.crc32(text.encode()) % HELD_OUT == 0


def _date(random: Random, held_out: bool) -> Pair:
    while True:
        date = datetime.date.fromordinal(random.randint(FIRST, LAST))
        if is_held_out(date.isoformat()) == held_out:
            break
    locale, pattern = random.choice(date_formats())
    written = _written(date, locale, pattern)
    return (written.lower() if random.random() < 0.25 else written), date.isoformat()


def _written(date: datetime.date, locale: Any, pattern: str) -> str:
    from babel.dates import format_date

    # The spaces CLDR sets narrow or unbreakable are plain ones on a keyboard.
    return re.sub(r"\s+", " ", format_date(date, pattern, locale))


@cache
def date_formats() -> tuple[tuple[Any, str], ...]:
    """Return every (locale, pattern) in which a date of four-digit year has one meaning only.

    Left out: years of two digits, and the month before the day in figures, since 3/4/2020 is two dates.
    """
    try:
        from babel import Locale
    except ImportError as error:
        raise UnsupportedError(
            "the task dates needs Babel's locale data: pip install 'regard[train]', or pip install babel."
        ) from error
    formats: dict[tuple[str, str], tuple[Any, str]] = {}
    for locale in map(Locale.parse, LOCALES):
        dated = [locale.date_formats[length] for length in ("short", "medium", "long", "full")]
        skeletons = locale.datetime_skeletons
        dated += [skeletons[name] for name in ("yMd", "yMMMd", "yMMMEd") if name in skeletons]
        for pattern in (str(written.pattern) for written in dated):
            plain = re.sub(r"'[^']*'", "", pattern)
            year, named = re.findall(r"y+", plain), re.search(r"[ML]{3}", plain)
            if year not in (["y"], ["yyyy"]) or "G" in plain:
                continue
            order = "".join(dict.fromkeys(re.findall(r"[yMLd]", plain)))
            if named or order in ("dMy", "yMd"):
                formats[str(locale), pattern] = (locale, pattern)
    return tuple(formats.values())


def _date_alphabet() -> list[str]:
    """Return dates in every format, with every month, weekday and digit."""
    days = [datetime.date(1987 + month, month, 5 + month) for month in range(1, 13)]
    days += [datetime.date(2046, 3, day) for day in range(20, 27)]
    texts = [_written(day, *form) for form in date_formats() for day in days]
    return [*texts, *(text.lower() for text in texts), "0123456789-"]


def _row(settings: Settings, random: Random, held_out: bool) -> Pair:
    longest = (held_out and settings.test_words) or settings.max_words
    while True:
        n_word = random.randint(settings.min_words, longest)
        words = [str(random.randrange(settings.symbols)) for _ in range(n_word)]
        source = " ".join(words)
        # Rows this short are too few to spare: training needs to see them.
        if len(words) == 1 or is_held_out(source) == held_out:
            answers = {"copy": words, "reverse": words[::-1], "sort": sorted(words, key=int)}
            return source, " ".join(answers[settings.task])


def _recall(settings: Settings, random: Random, held_out: bool) -> Pair:
    """Return pairs of key and value, then a key: "k3 17 k9 4 k1 8 ? k9" -> "4"."""
    longest = (held_out and settings.test_words) or settings.max_words
    if longest > settings.symbols:
        raise ArgumentError(
            f"recall has a different key for each pair: symbols must be at least {longest}, "
            f"the longest row. Got {settings.symbols}."
        )
    while True:
        n_pair = random.randint(settings.min_words, longest)
        keys = random.sample(range(settings.symbols), n_pair)
        values = [random.randrange(settings.symbols) for _ in keys]
        asked = random.randrange(n_pair)
        pairs = " ".join(f"k{key} {value}" for key, value in zip(keys, values, strict=True))
        if is_held_out(pairs) == held_out:
            return f"{pairs} ? k{keys[asked]}", str(values[asked])

"""Generated tasks: what they ask, that they repeat themselves, and that held-out data are held out."""

import datetime

import pytest

from regard.errors import ArgumentError
from regard.train.settings import GENERATED, Settings
from regard.train.tasks import date_formats, generated_task, is_held_out
from regard.train.vocabulary import train_tokenizer


@pytest.mark.parametrize("name", GENERATED)
def test_an_example_depends_on_its_seed_and_index_alone(name):
    """The same seed and index give the same example whatever was asked before; others give others."""
    one, other = generated_task(Settings.of(name)), generated_task(Settings.of(name))
    forwards = [one.example(7, index) for index in range(53)]
    backwards = [other.example(7, index) for index in reversed(range(53))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 47
    assert forwards != [one.example(11, index) for index in range(53)]


def test_a_written_date_has_one_meaning():
    """No text that the task can write for a year's days stands for two dates, in any locale or case."""
    from regard.train.tasks import _written

    meaning = {}
    days = [datetime.date(2011, 1, 1) + datetime.timedelta(day) for day in range(365)]
    for locale, pattern in date_formats():
        for day in days:
            text = _written(day, locale, pattern)
            for spelled in (text, text.lower()):
                assert meaning.setdefault(spelled, day) == day


def test_dates_are_written_in_many_locales():
    """Most locales give several formats, and month names of their own."""
    locales = {str(locale) for locale, _ in date_formats()}
    assert len(locales) > 25
    task = generated_task(Settings.of("dates"))
    sources = [task.example(0, index)[0] for index in range(3001)]
    assert any("de março de" in source.lower() for source in sources)
    assert any("年" in source for source in sources)


def test_held_out_dates_are_never_trained_on():
    """The calendar dates of training and of held-out data are disjoint."""
    task = generated_task(Settings.of("dates"))
    trained = {task.example(0, index)[1] for index in range(3001)}
    held_out = {task.example(0, index, held_out=True)[1] for index in range(1009)}
    assert not trained & held_out
    assert all(is_held_out(date) for date in held_out)


@pytest.mark.parametrize("name", ["reverse", "copy", "sort", "recall"])
def test_held_out_rows_are_never_trained_on(name):
    """Rows of more than one word are in training or held out, not both."""
    task = generated_task(Settings.of(name, {"symbols": 5, "max_words": 3, "min_words": 2}))
    rows = [
        {task.example(0, i, held_out=held)[0].partition(" ?")[0] for i in range(997)}
        for held in (False, True)
    ]
    assert rows[0]
    assert rows[1]
    assert not rows[0] & rows[1]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("copy", lambda words: words),
        ("reverse", lambda words: words[::-1]),
        ("sort", lambda words: sorted(words, key=int)),
        ("recall", lambda words: [words[words.index(words[-1]) + 1]]),
    ],
)
def test_the_answer_is_what_the_task_says(name, answer):
    """Copied, turned round, in order, or the word after the first place of the last."""
    task = generated_task(Settings.of(name))
    for index in range(101):
        source, target = task.example(3, index)
        assert target.split() == answer(source.split())


def test_held_out_rows_may_be_longer_than_those_of_training():
    """`test_words` is the longest held-out row, `max_words` the longest of training."""
    task = generated_task(Settings.of("reverse", {"max_words": 7, "test_words": 13}))
    assert max(len(task.example(0, index)[0].split()) for index in range(503)) == 7
    assert max(len(task.example(0, index, held_out=True)[0].split()) for index in range(503)) == 13


def test_recall_needs_a_key_for_each_pair():
    """More pairs than symbols is an error that says so."""
    task = generated_task(Settings.of("recall", {"symbols": 5, "max_words": 11}))
    with pytest.raises(ArgumentError, match="symbols must be at least 11"):
        task.example(0, 0)


@pytest.mark.parametrize("name", GENERATED)
def test_the_alphabet_covers_the_task(name):
    """A tokenizer made from the alphabet knows every example and gives it back."""
    settings = Settings.of(name)
    task = generated_task(settings)
    tokenizer = train_tokenizer(settings.tokenizer, task.alphabet(), end=True)
    for index in range(701):
        for text in task.example(5, index):
            ids = tokenizer.encode(text)
            assert tokenizer.special.unk not in ids
            assert ids[-1] == tokenizer.special.eos
            assert tokenizer.decode(ids) == text

"""Stories from the grammar: the same for ever, without a trace of the grammar, with something to find."""

import re
from itertools import islice

import pytest

from regard.errors import ArgumentError
from regard.train.stories import grammar, stories, story

MANY = tuple(stories(700, seed=5))


def test_a_story_depends_on_seed_and_index_alone():
    """Seed 1, index 12 and seed 11, index 2 are different stories; the same ones are equal."""
    assert story(1, 12) == story(1, 12)
    assert story(1, 12) != story(11, 2)


def test_no_story_comes_twice():
    assert len(set(MANY)) == len(MANY) == 700


def test_nothing_of_the_grammar_is_left_in_a_story():
    for text in MANY:
        assert not re.search(r"[\[\]{}<>|]", text), text
        assert "  " not in text
        assert "\n" not in text
        assert text[0].isupper() or text[0] == '"'


def test_articles_fit_the_word_behind_them():
    for text in MANY:
        assert not re.search(r"\b[Aa] [aeiou]", text), text
        assert not re.search(r"\b[Aa]n [^aeiou]", text), text


def test_every_plot_and_every_line_of_a_rule_is_told():
    """A line that no plot reaches would be missing from 700 stories; a misspelt slot would have raised."""
    source = grammar()
    lines = [line for part in (source.rules, source.plots) for lines in part.values() for line in lines]
    fixed = [re.split(r"[\[\]{}<>|]", line.removeprefix("?"))[0].strip() for line in lines]
    fixed = [start for start in fixed if len(start) > 9]
    assert [start for start in fixed if not any(start in text for text in MANY)] == []


def test_names_come_back_so_that_there_is_something_to_copy():
    names = set(grammar().words["girls"] + grammar().words["boys"])
    repeated = [max((text.count(name) for name in names if name in text), default=0) for text in MANY]
    assert min(repeated) >= 2


def test_a_negative_number_of_stories_is_refused():
    with pytest.raises(ArgumentError, match=r"at least 0\. Got -1"):
        list(islice(stories(-1), 1))

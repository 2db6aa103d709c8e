"""Settings: from Python, from TOML, and the words said of a wrong one."""

import pytest

from regard.errors import ArgumentError, LoadError
from regard.train.settings import CHOICES, HELP, Settings


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("dates", {"lr": 3, "out": 'a "quoted" \\ näme', "compile": True}),
        ("translate", {"pairs": ["one.de.gz", "other.en.gz"], "score": "dot"}),
        ("lm", {"text": "a.txt", "model": "bert"}),
    ],
)
def test_toml_gives_the_settings_back(tmp_path, task, given):
    """What `to_toml` writes, `read` reads."""
    settings = Settings.of(task, given)
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml(), encoding="utf-8")
    assert Settings.read(path) == settings


def test_what_is_given_has_the_last_word(tmp_path):
    """The task's own defaults, then the file, then what is given."""
    path = tmp_path / "config.toml"
    path.write_text('task = "lm"\ntext = "a.txt"\nsteps = 11\nlr = 1\n')
    settings = Settings.read(path, {"steps": 13})
    assert (settings.model, settings.steps, settings.lr, settings.text) == ("gpt2", 13, 1.0, ("a.txt",))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stepps": 3}, "no setting 'stepps'. Did you mean 'steps'"),
        ({"steps": "3"}, "steps must be a whole number. Got '3'"),
        ({"steps": True}, "steps must be a whole number. Got True"),
        ({"steps": 0}, "steps must be at least 1. Got 0"),
        ({"lr": "high"}, "lr must be a number"),
        ({"compile": 1}, "compile must be True or False"),
        ({"score": "cosine"}, "score must be one of additive, dot, general, none. Got 'cosine'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"model": "gpt2"}, "task dates needs a model of seq2seq, t5. Got gpt2"),
        ({"model": "t5", "model_dim": 10, "n_head": 3}, "model_dim must be a multiple of n_head"),
        ({"pairs": "a.tsv"}, "task dates takes no pairs"),
        ({"min_words": 9, "max_words": 7}, "max_words must be at least min_words"),
    ],
)
def test_a_wrong_setting_is_named(given, words):
    """The error names the setting, its rule and what was given."""
    with pytest.raises(ArgumentError, match=words):
        Settings.of("dates", given)


def test_a_task_without_its_data_says_which_option_gives_them():
    """`translate` needs pairs and `lm` needs text."""
    with pytest.raises(ArgumentError, match="give pairs, as --pairs FILE"):
        Settings.of("translate")
    with pytest.raises(ArgumentError, match="give text, as --text FILE"):
        Settings.of("lm")


@pytest.mark.parametrize(
    ("content", "words"), [("steps = ", "is not TOML"), ("stepps = 3", "config.toml: there")]
)
def test_a_broken_file_is_named(tmp_path, content, words):
    """The path of the file is in the error."""
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises((LoadError, ArgumentError), match=words):
        Settings.read(path)


def test_every_setting_is_an_option_of_the_command():
    """`regard train --help` lists every setting with its help."""
    from regard.commands.train import train

    options = {option.name: option for option in train.params}
    assert {name for name in HELP if name != "task"} <= set(options)
    assert all(options[name].help == text for name, text in HELP.items() if name != "task")


def test_the_models_one_can_train_are_the_families_and_seq2seq():
    """Settings know no family by name: they take them from the table that is read without torch."""
    from regard.models.families import FAMILIES

    assert set(CHOICES["model"]) == {"seq2seq", *FAMILIES}
    with pytest.raises(ArgumentError, match=r"there is no model 'gtp2'\. Did you mean 'gpt2'"):
        Settings.of("lm", {"model": "gtp2", "text": ["t"]})

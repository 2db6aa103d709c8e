"""The path through the exercises."""

import pytest

from regard.checking import lending, starters
from regard.checking.catalogue import entries, find, next_stop, ours, tracks
from regard.checking.submission import from_source
from regard.errors import ArgumentError


def test_every_exercise_stands_in_a_track_after_what_it_needs():
    """Also the exercises that its own file lends: to use one, one should have written it."""
    path = tracks(ours())
    stops = [stop for track in path for stop in track.stops]
    ids = [stop.exercise.id for stop in stops]
    assert sorted(ids) == sorted(ours())
    assert "More" not in [track.title for track in path]
    for number, stop in enumerate(stops):
        assert set(stop.after) <= set(ids[:number]), f"{stop.exercise.id} comes before {stop.after}"
        assert stop.level in (1, 2, 3)
        assert 5 <= stop.minutes <= 120


def test_one_exercise_is_the_one_of_the_list():
    """By its id alone: not by another spelling of its folder, and the template is none."""
    for id in ("multi-head", "rope"):
        assert find(id).title == ours()[id].title
    for wrong in ("multi_head", "../exercises/rope", "template", "rop"):
        with pytest.raises(ArgumentError, match="no exercise"):
            find(wrong)


def test_a_list_says_of_every_exercise_what_the_exercise_says(tmp_path):
    """Though it reads no further than the first table; a line of an example may look like one."""
    listed = {id: (entry.title, entry.names) for id, entry in entries().items()}
    assert listed == {id: (exercise.title, exercise.names) for id, exercise in ours().items()}
    starters.new_exercise("double-it", tmp_path / "double_it")
    about = tmp_path / "double_it" / "exercise.toml"
    about.write_text('example = """\n[double_it(x) for x in range(3)]\n"""\n' + about.read_text())
    assert entries(tmp_path)["double-it"].names == ("double_it",)


def test_what_comes_next():
    path = tracks(ours())
    assert next_stop(path, set()).exercise.id == "rnn-step"
    assert next_stop(path, {"rnn-step"}).exercise.id == "rnn-forward"
    first = {stop.exercise.id for stop in path[0].stops}
    assert next_stop(path, first).exercise.id == path[1].stops[0].exercise.id
    assert next_stop(path, set(ours())) is None


def test_an_exercise_of_ones_own_stands_last():
    mine = {**ours(), "mine": ours()["moments"]}
    assert tracks(mine)[-1].title == "More"
    assert [stop.level for stop in tracks(mine)[-1].stops] == [0]


@pytest.mark.parametrize("exercise", ours().values(), ids=lambda exercise: exercise.id)
def test_the_example_of_a_starter_runs_and_prints(exercise, capsys):
    """With the first right variant in the place of the starter, as a student's file has it."""
    source = starters.script(exercise).replace(exercise.starter, exercise.right[0])
    lent = lending.lent(from_source(source).undefined, exercise.names)
    exec("\n".join([*lent.values(), source]), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()

"""The path through the exercises."""

from regard.checking.catalogue import ours
from regard.checking.path import next_stop, tracks


def test_every_exercise_stands_in_a_track_after_what_it_needs():
    """Also the exercises that its own file lends: to use one, one should have written it."""
    path = tracks(ours())
    stops = [stop for track in path for stop in track.stops]
    ids = [stop.exercise.id for stop in stops]
    assert sorted(ids) == sorted(ours())
    assert "More" not in [track.title for track in path]
    for number, stop in enumerate(stops):
        assert set(stop.after) <= set(ids[:number]), f"{stop.exercise.id} comes before {stop.after}"
        assert set(stop.exercise.needs) <= {*ids[:number]}, stop.exercise.id
        assert stop.level in (1, 2, 3)
        assert 5 <= stop.minutes <= 120


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

"""Tables of heads for other programs."""

import sys

import pytest
from tiny_models import tiny

from regard.errors import UnsupportedError
from regard.heads import columns_of, label, measure, survey, to_dataframe
from regard.tracing.take import trace


def test_each_table_has_a_row_for_each_head():
    """Measures, labels, and of a survey both, with the numbers they hold."""
    loaded = tiny("gpt2")
    measures = measure(trace(loaded, "the cat sat on the mat"))
    columns = columns_of(measures)
    assert {len(column) for column in columns.values()} == {12}
    assert list(zip(columns["layer"], columns["head"], strict=True))[7] == ("decoder.1.self", 1)
    assert columns["previous"][7] == float(measures["previous"][1, 1])
    labels = label(measures)
    assert columns_of(labels)["label"] == [head.label for head in labels]
    surveyed = survey(loaded, ["the cat sat on the mat", "a dog ran"], n_repeat=1, progress=False)
    both = columns_of(surveyed)
    assert both["label"] == [head.label for head in surveyed.labels()]
    assert both["same"] == surveyed.measures["same"].flatten().tolist()


def test_pandas_makes_the_table_where_it_is_installed(monkeypatch):
    """It is asked for by name, and missed with a word on how to get it."""
    measures = measure(trace(tiny("gpt2"), "the cat sat"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pip install pandas"):
        to_dataframe(measures)
    fake = type("pandas", (), {"DataFrame": staticmethod(lambda columns: ("frame", list(columns)))})
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert to_dataframe(label(measures)) == ("frame", list(columns_of(label(measures))))

"""The rules of a verdict, and the report."""

import math
import re
import statistics

import pytest
import torch
from matplotlib.figure import Figure

from regard.errors import ArgumentError
from regard.lab.catalogue import find
from regard.lab.pages import report
from regard.lab.spec import Check, Done, Experiment, Measurement, Result, above, below, equal, near, perform


def test_a_mean_has_four_standard_errors_on_either_side():
    """Worked by hand: the values 1, 2, 3, 6 have mean 3 and standard error sqrt(14/3) / 2."""
    measured = Measurement.mean("m", [1, 2, 3, 6])
    assert measured.value == 3
    assert measured.high - measured.value == pytest.approx(4 * math.sqrt(14 / 3) / 2)
    assert measured.low == pytest.approx(6 - measured.high)


@pytest.mark.parametrize(("right", "n"), [(0, 13), (13, 13), (5, 13), (1, 1)])
def test_a_share_has_an_interval_inside_0_and_1(right, n):
    """Also where all or none of the trials were right."""
    measured = Measurement.share("s", right, n)
    assert 0 <= measured.low <= measured.value <= measured.high <= 1
    assert measured.low < measured.high


def test_a_share_covers_the_truth():
    """Of a thousand samples of 40 coins that land right 3 times in 10, no interval at 4 misses it often."""
    generator = torch.Generator().manual_seed(7)
    samples = (torch.rand(1000, 40, generator=generator) < 0.3).sum(1).tolist()
    measured = [Measurement.share("s", right, 40) for right in samples]
    assert statistics.fmean(each.low <= 0.3 <= each.high for each in measured) > 0.998


def test_each_rule_holds_and_fails():
    """near, equal, above and below, just inside and just outside."""
    wide, high = Measurement("a", 2.0, 1.0, 3.0), Measurement("b", 5.0, 4.0, 6.0)
    assert near("x", wide, 3.0).holds
    assert not near("x", wide, 3.2).holds
    assert near("x", wide, 3.2, slack=0.1).holds
    assert above("x", high, wide).holds
    assert not above("x", high, 4.0).holds
    assert below("x", wide, high).holds
    assert not below("x", high, wide).holds
    assert equal("x", 1.0 + 1e-9, 1.0, rounding=1e-8).holds
    assert not equal("x", 1.0 + 1e-9, 1.0).holds


def test_nan_confirms_nothing():
    """A measurement that failed holds by no rule."""
    lost = Measurement.exact("lost", math.nan)
    assert math.isnan(Measurement.mean("lost", [1.0, -math.inf, 2.0]).low)
    checks = [near("x", lost, 1.0), above("x", lost, 0.0), below("x", lost, 1.0), equal("x", math.nan, 1.0)]
    assert not any(each.holds for each in checks)


def made(*holds):
    checks = tuple(Check(f"claim {index}", "rule", "1", each) for index, each in enumerate(holds))
    return Result((Measurement.exact("m", 1),), checks, Figure(), "all is as said")


def test_the_verdict_is_confirmed_only_if_every_check_holds():
    """And the sentence names the first that fails."""
    assert made(True, True).sentence == "Confirmed: all is as said."
    assert made(True, False, False).verdict == "refuted"
    assert "2 of 3 predictions fail, first that claim 1" in made(True, False, False).sentence


def test_an_experiment_without_a_check_has_no_verdict():
    """What cannot fail says nothing."""
    with pytest.raises(ArgumentError, match="no verdict"):
        made()


def test_the_seed_alone_decides_and_the_callers_numbers_go_on():
    """The same seed gives the same measurements, and torch's generator is left as it was."""
    before = torch.get_rng_state()
    first, again = (perform(find("variance"), quick=True, seed=3).result for _ in range(2))
    other = perform(find("variance"), quick=True, seed=4).result
    assert torch.equal(before, torch.get_rng_state())
    assert first.measurements == again.measurements
    assert first.measurements != other.measurements


def test_the_report_is_one_page_that_loads_nothing():
    """Both verdicts, escaped texts and figures inside; no address of anything else."""
    experiment = Experiment("a <b>", "Claim & more.", "Prediction.", lambda quick, seed: made(True))
    done = [Done(experiment, made(*holds), quick=True, seed=0, seconds=1.0) for holds in ((True,), (False,))]
    page = report(done)
    assert "1 of 2 claims confirmed" in page
    assert "a &lt;b&gt;" in page
    assert "Claim &amp; more." in page
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_an_unknown_experiment_is_refused_with_the_known_ones():
    """The message lists what there is."""
    with pytest.raises(ArgumentError, match=r"no experiment 'nothing'\. There are: variance, temperature"):
        find("nothing")

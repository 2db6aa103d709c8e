"""The rules of a verdict, and the report."""

import math
import re
import statistics
from itertools import pairwise

import pytest
import torch

from regard.errors import ArgumentError
from regard.lab.catalogue import find
from regard.lab.pages import report
from regard.lab.spec import Experiment, Lab, LabCheck, Measurement, perform


@pytest.fixture
def lab():
    """A run that has measured nothing yet."""
    return Lab(Experiment("a <b>", "Claim & more.", "Prediction.", lambda lab: None))


def test_a_mean_has_four_standard_errors_on_either_side(lab):
    """Worked by hand: the values 1, 2, 3, 6 have mean 3 and standard error sqrt(14/3) / 2."""
    measured = lab.mean("m", [1, 2, 3, 6])
    assert measured == 3
    assert measured.high - measured == pytest.approx(4 * math.sqrt(14 / 3) / 2)
    assert measured.low == pytest.approx(6 - measured.high)


@pytest.mark.parametrize(("right", "n"), [(0, 13), (13, 13), (5, 13), (1, 1)])
def test_a_share_has_an_interval_inside_0_and_1(lab, right, n):
    """Also where all or none of the trials were right."""
    measured = lab.share("s", right, n)
    assert 0 <= measured.low <= measured <= measured.high <= 1
    assert measured.low < measured.high


def test_a_share_covers_the_truth(lab):
    """Of a thousand samples of 40 coins that land right 3 times in 10, no interval at 4 misses it often."""
    generator = torch.Generator().manual_seed(7)
    samples = (torch.rand(1000, 40, generator=generator) < 0.3).sum(1).tolist()
    measured = [lab.share("s", right, 40) for right in samples]
    assert statistics.fmean(each.low <= 0.3 <= each.high for each in measured) > 0.998


def test_each_rule_holds_and_fails(lab):
    """near, equal, above and below, just inside and just outside."""
    wide, high = Measurement("a", 2.0, 1.0, 3.0), Measurement("b", 5.0, 4.0, 6.0)
    lab.near("x", wide, 3.0)
    lab.near("x", wide, 3.2, slack=0.1)
    lab.above("x", high, wide)
    lab.below("x", wide, high)
    lab.equal("x", 1.0 + 1e-9, 1.0, rounding=1e-8)
    assert all(check.holds for check in lab.checks)
    lab.checks.clear()
    lab.near("x", wide, 3.2)
    lab.above("x", wide, high)
    lab.below("x", high, wide)
    lab.equal("x", 1.0 + 1e-9, 1.0)
    assert {check.outcome for check in lab.checks} == {"fails"}
    lab.checks.clear()
    lab.above("x", high, 4.5)
    lab.below("x", wide, Measurement("c", 3.0, 2.5, 3.5))
    assert {check.outcome for check in lab.checks} == {"undecided"}


def test_an_interval_that_reaches_zero_is_not_surely_above_it(lab):
    """0.5532 with an interval of -0.22 to 1.33 says nothing, and the sentence says so."""
    lab.quick = True
    lab.above("random heads cost more", Measurement("rise", 0.5532, -0.22, 1.33, "nats"), 0.0)
    assert lab.verdict == "undecided"
    assert lab.sentence == (
        "Undecided at this length: 1 of 1 prediction cannot be decided. “random heads cost more”: measured "
        "0.5532 nats (-0.22 to 1.33), which may or may not be above 0."
    )


def test_arithmetic_keeps_intervals():
    """Worked by hand: (1 to 3) and (4 to 6), each way round."""
    a, b = Measurement("a", 2.0, 1.0, 3.0), Measurement("b", 5.0, 4.0, 6.0)
    for combined, low, value, high in (
        (a + b, 5, 7, 9), (b - a, 1, 3, 5), (1 - a, -2, -1, 0), (2 * a, 2, 4, 6),
        (a * -1, -3, -2, -1), (b / a, 4 / 3, 2.5, 6), (6 / a, 2, 3, 6),
    ):  # fmt: skip
        assert (combined.low, combined.plain, combined.high) == pytest.approx((low, value, high))


def test_a_measurement_is_a_number_that_says_its_interval():
    """It is used as any float is, and alone it says its name's unit and its interval."""
    measured = Measurement("a", 2.0, 1.0, 3.0, "nats")
    assert (measured + 1, f"{measured:.1f}", str(measured)) == (3.0, "2.0", "2 nats (1 to 3)")
    assert f"{measured}" == str(measured)
    assert str(Measurement("b", 0.5)) == "0.5"


def test_nan_confirms_nothing(lab):
    """A measurement that failed holds by no rule."""
    lost = lab.mean("lost", [1.0, -math.inf, 2.0])
    assert math.isnan(lost.low)
    lab.near("x", lost, 1.0)
    lab.above("x", lost, 0.0)
    lab.below("x", lost, 1.0)
    lab.equal("x", math.nan, 1.0)
    assert not any(check.holds for check in lab.checks)


def test_what_is_measured_is_reported(lab):
    """Each measurement and each check is in the result, without being handed on."""
    share = lab.share("s", 5, 13)
    lab.above("half", share, 0.5)
    said = lab.as_json()
    assert [measurement["name"] for measurement in said["measurements"]] == ["s"]
    assert [(check["what"], check["holds"]) for check in said["checks"]] == [("half", False)]


def made(lab, *outcomes):
    lab.checks = [LabCheck(f"claim {at}", "above 0", "1", outcome) for at, outcome in enumerate(outcomes)]
    return lab


def test_the_verdict_is_confirmed_only_if_every_check_holds(lab):
    """And the sentence names the first that fails or cannot be decided; one that fails decides."""
    assert made(lab, "holds", "holds").sentence == "Confirmed: claim 0: 1, above 0; claim 1: 1, above 0."
    assert made(lab, "undecided", "fails", "fails").verdict == "refuted"
    assert lab.sentence == "Refuted: 2 of 3 predictions fail. “claim 1”: measured 1, which is not above 0."
    assert made(lab, "holds", "undecided").verdict == "undecided"


def test_an_experiment_without_a_check_has_no_verdict(lab):
    """What cannot fail says nothing."""
    with pytest.raises(ArgumentError, match="no verdict"):
        perform(lab.experiment)


def test_panels_stand_side_by_side_with_one_legend_for_the_same_names(lab):
    """Each call adds a panel; a legend is drawn where its names are new."""
    for title in ("one", "two"):
        lab.draw.lines(title, [1, 2], {"a": [1.0, 2.0], "b": [2.0, 1.0]}, "x", "y")
    lab.draw.heat_map("three", torch.eye(3), list("abc"))
    lab.draw.bars("four", {"a": 1.0}, "y")
    lab.draw.chance(0.5)
    lab.draw.arrange()
    axes = [ax for ax in lab.draw.figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in axes] == ["one", "two", "three", "four"]
    assert [ax.get_legend() is not None for ax in axes] == [True, False, False, False]
    lab.draw.png()
    boxes = [ax.get_position() for ax in axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert boxes[3].x1 > 0.9  # a map's colour bar takes no place of a panel


def test_the_seed_alone_decides_and_the_callers_numbers_go_on():
    """The same seed gives the same measurements, and torch's generator is left as it was."""
    before = torch.get_rng_state()
    first, again = (perform(find("variance"), quick=True, seed=3) for _ in range(2))
    other = perform(find("variance"), quick=True, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert first.measurements == again.measurements
    assert first.measurements != other.measurements


def test_the_report_is_one_page_that_loads_nothing(lab):
    """Both verdicts, escaped texts and figures inside; no address of anything else."""
    other = Lab(lab.experiment)
    lab.draw.bars("one", {"a": 1.0}, "y")
    page = report([made(lab, "holds"), made(other, "fails")])
    assert "Of 2 claims: 1 confirmed, 1 refuted." in page
    assert "a &lt;b&gt;" in page
    assert "Claim &amp; more." in page
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_an_unknown_experiment_is_refused_with_the_known_ones():
    """The message lists what there is."""
    with pytest.raises(ArgumentError, match=r"no experiment 'nothing'\. There are: variance, temperature"):
        find("nothing")

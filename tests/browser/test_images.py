"""A vision model's weights over its picture: each patch has the number of its own position."""

from dataclasses import replace

import pytest
import torch

from regard.tracing.traces import Grid, Trace

ROWS, COLUMNS = 3, 7


@pytest.fixture
def found():
    """Two special tokens, 3 x 7 patches, one more at the end; a picture of 48 x 112 pixels."""
    image = torch.randint(0, 256, (1, 48, 112, 3), dtype=torch.uint8)
    grid = Grid(ROWS, COLUMNS, before=2, after=1, image=image)
    weights = torch.randn(2, 24, 24).softmax(-1)
    return replace(Trace.from_weights(weights, rows=grid.names, cols=grid.names), grid=grid)


def shown(page):
    """The weight that each position of the picture has."""
    page.wait_for_selector(".patches .word[data-weight]")
    return page.locator(".textview .word").evaluate_all(
        "all => all.map(w => [Number(w.dataset.index), Number(w.dataset.weight)]).sort((a, b) => a[0] - b[0])"
    )


def test_a_row_lies_over_the_patches_it_is_of(looker, exported, found):
    """Every patch has its weight, at its place in the picture; the strongest one is lit most."""
    looker.open(exported(found, view="text", head=1, query=9), wait=".picture img")
    page = looker.page
    weights = found.row(0, 1, 9).tolist()
    assert [weight for _, weight in shown(page)] == pytest.approx(weights, abs=2e-6)
    box = page.locator(".picture img").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(112 / 48, rel=0.02)
    for row, column in ((0, 0), (1, 4), (2, 6)):
        place = page.locator(f".word[data-index='{2 + row * COLUMNS + column}']").bounding_box()
        assert place["x"] + place["width"] / 2 == pytest.approx(
            box["x"] + (column + 0.5) * box["width"] / COLUMNS, abs=2
        )
        assert place["y"] + place["height"] / 2 == pytest.approx(
            box["y"] + (row + 0.5) * box["height"] / ROWS, abs=2
        )
    dark = page.locator(".patches .word").evaluate_all(
        "all => all.map(w => Number(w.style.backgroundColor.split(',').pop().replace(')', '')))"
    )
    patches = weights[2:23]
    assert dark[patches.index(max(patches))] == min(dark)  # two may be equal, to the digits of a colour


def test_a_patch_or_a_special_token_is_chosen_by_hand_and_by_keys(looker, exported, found):
    """A click chooses; arrows go along a row and from row to row; CLS stands beside the picture."""
    looker.open(exported(found, view="text", head=1), wait=".picture img")
    page = looker.page
    page.click(".word[data-index='5']")
    assert [weight for _, weight in shown(page)] == pytest.approx(found.row(0, 1, 5).tolist(), abs=2e-6)
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("() => regard.state.query") == 5 + COLUMNS + 1
    page.click(".word:text-is('CLS')")
    assert page.evaluate("() => regard.state.query") == 0


def test_the_story_of_an_image_is_told_on_the_image(looker, exported, found):
    """What opens is the picture, one link in it; a click on a patch says what that looks at."""
    page = looker.page
    page.goto(exported(found, at="story"))
    page.wait_for_selector(".story .picture img")
    page.wait_for_function("() => regard.story.said.textContent.includes('links')")  # the one link
    page.click(".story .word[data-index='4']")
    page.wait_for_function("() => regard.story.said.textContent.includes('links 0,2 to')")
    state = page.evaluate("() => regard.state")
    row = found.row(state["layer"], state["head"], 4)
    assert float(page.get_attribute(".story .finding", "data-weight")) == pytest.approx(
        row.max().item(), abs=2e-6
    )
    assert page.locator(".story .word.marked").get_attribute("data-index") == str(int(row.argmax()))

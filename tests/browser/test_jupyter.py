"""JupyterLab itself, without a window: the widget in a cell of 600 pixels, answered by a real kernel."""

import json
import os
import re
import subprocess
import sys
import time
import venv

import pytest

from regard.files.loading import load
from regard.tracing.take import trace

PACKAGES = ("jupyterlab==4.6.6", "anywidget==0.11.0", "ipykernel==7.4.0")
TEXT = "to be or not"
CELLS = [
    'import regard\nmodel = regard.load("minilm", random=True)\n'
    f'found = regard.trace(model, "{TEXT}", keep_v=True)',
    "regard.show(found, model=model, layer=3, head=7, embed=False)",
    "\n".join(f"# line {index}" for index in range(80)),  # something to scroll to
]
RUN = "async () => { await jupyterapp.commands.execute('runmenu:run-all'); }"
FOUND = "document.querySelector('.regard-page').regard"
DRAWN = f"""() => document.querySelector('.regard-page')
    && {FOUND}.source && {FOUND}.facts && !{FOUND}.stage.waiting"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab in an environment of its own; what we need is borrowed from here."""
    folder = tmp_path_factory.mktemp("lab")
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    python = folder / "environment" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"jupyterlab cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (site,) = (folder / "environment" / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith(("site-packages", "src"))]
    (site / "zz_borrowed.pth").write_text("\n".join(here), encoding="utf-8")
    cells = [
        {"cell_type": "code", "id": f"c{index}", "source": source, "metadata": {}, "outputs": [],
         "execution_count": None}
        for index, source in enumerate(CELLS)
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    page = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "page.ipynb").write_text(json.dumps(page), encoding="utf-8")
    options = ["--no-browser", "--allow-root", "--port=0", "--IdentityProvider.token=lab", "--ip=127.0.0.1"]
    options += ["--LabApp.expose_app_in_browser=True", "--ServerApp.quit_button=False"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = folder / "said"
    with said.open("w") as errors:
        server = subprocess.Popen(
            [python, "-m", "jupyterlab", *options],
            cwd=folder,
            env={**kept, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
            stderr=errors,
            stdout=subprocess.DEVNULL,
        )
    try:
        for _ in range(600):
            match = re.search(r"http://127\.0\.0\.1:(\d+)/lab", said.read_text())
            if match or server.poll() is not None:
                break
            time.sleep(0.2)
        assert match, said.read_text()[-2000:]
        yield f"http://127.0.0.1:{match[1]}/doc/tree/page.ipynb?token=lab"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_the_widget_lives_in_a_cell_of_600_pixels(lab, browser):
    """It draws the kernel's numbers, uses the width it has, lets the notebook scroll, reads a new text."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(lab)
    page.wait_for_function("() => window.jupyterapp && document.querySelectorAll('.jp-Cell').length === 3")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")  # its kernel is there
    page.add_style_tag(content=".jp-OutputArea-output { width: 600px !important; flex: none !important; }")
    page.evaluate(RUN)
    page.wait_for_function(DRAWN)
    host = page.locator(".regard-page")
    host.scroll_into_view_if_needed()
    assert 560 <= host.bounding_box()["width"] <= 600

    model = load("minilm", random=True)
    made = trace(model, TEXT)
    row = page.evaluate(
        f"async () => [...(await {FOUND}.source.tile({{layer: 3, head: 7, r0: 4, r1: 5, c0: 0, c1: 14, "
        "nRow: 1, nCol: 14, valued: false})).values]"
    )
    assert row == pytest.approx(made.row(3, 7, 4).tolist(), abs=2e-6)
    wide = page.evaluate(f"() => [{FOUND}.element.scrollWidth, {FOUND}.element.clientWidth]")
    assert wide[0] <= wide[1]
    drawn = page.locator("canvas.map").bounding_box()
    cells = page.evaluate(f"() => {FOUND}.stage.panels[0].map.view.px * 14")
    assert drawn["width"] >= 480
    assert cells >= 300  # it was 170 when the window's width decided

    scrolled = "() => document.querySelector('.jp-WindowedPanel-outer').scrollTop"
    before, px = page.evaluate(scrolled), page.evaluate(f"() => {FOUND}.stage.panels[0].map.view.px")
    page.mouse.move(drawn["x"] + 200, drawn["y"] + 150)
    for _ in range(40):  # to the end of the widget's own page first, then the notebook
        page.mouse.wheel(0, 200)
        page.wait_for_timeout(200)
        if page.evaluate(scrolled) > before:
            break
    assert page.evaluate(scrolled) > before
    assert page.evaluate(f"() => {FOUND}.stage.panels[0].map.view.px") == px
    heights = page.evaluate(
        "() => ['.regard-page', '.jp-OutputArea-output'].map(name => "
        "document.querySelector(name).getBoundingClientRect().height)"
    )
    assert heights[0] <= 720  # and stays out of the next cell
    assert heights[1] <= 740

    page.fill(".regard-page textarea[aria-label='text']", "ab")
    page.press(".regard-page textarea[aria-label='text']", "Enter")
    page.wait_for_function(f"() => {FOUND}.source.meta.tokens.length === 4")
    assert page.locator(".jp-Cell").count() == 3  # keys typed here were no commands of the notebook
    out = os.environ.get("REGARD_SCREENSHOTS")
    if out:
        host.screenshot(path=f"{out}/jupyter.png")
    context.close()

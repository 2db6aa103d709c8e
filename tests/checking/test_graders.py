"""The graders themselves, and a hundred students: what docs/classroom.md says, word by word."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest
from classroom import FIVE, RIGHT, write_class, wrong

from regard.checking.catalogue import ours
from regard.checking.handout import example

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "classroom.md").read_text(encoding="utf-8")
SECTIONS = {
    title: "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    for title, text in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
}
NEEDED = {"otter": ("otter-grader==7.0.0", "ipykernel==7.4.0"), "nbgrader": ("nbgrader==0.9.6",)}


def environment_of(folder, packages=()):
    """Variables in which `regard` and these packages are commands; what we need is borrowed from here."""
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    bin = folder / "environment" / "bin"
    if packages:
        install = [sys.executable, "-m", "pip", "--python", bin / "python", "install", "--quiet"]
        done = subprocess.run([*install, *packages], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{packages[0]} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (site,) = (folder / "environment" / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith(("site-packages", "src"))]
    (site / "zz_borrowed.pth").write_text("\n".join(here), encoding="utf-8")
    (bin / "regard").write_text(f'#!/bin/sh\nexec "{bin}/python" -m regard "$@"\n')
    (bin / "pytest").write_text(f'#!/bin/sh\nexec "{bin}/python" -m pytest "$@"\n')
    for name in ("regard", "pytest"):
        (bin / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # The plugin has its name from the installed package, which here may be an older one.
    plugin = "-p no:regard -p regard.checking.pytest_plugin -p no:randomly -p no:cacheprovider"
    return kept | {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "PYTEST_ADDOPTS": plugin,
    }


def follow(title, folder, environment):
    """What the commands of a section print."""
    script = ["bash", "-euc", SECTIONS[title]]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{title}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def fill(path, answers):
    """Put answers into the starters of a notebook."""
    page = json.loads(path.read_text())
    for cell in page["cells"]:
        source = "".join(cell["source"])
        for id, text in answers.items():
            if f"def {ours()[id].names[0]}(" in source:
                cell["source"] = text
    path.write_text(json.dumps(page))


def test_every_command_of_the_page_belongs_to_a_section():
    """The sections below are those that are followed: one that is new is followed too, or fails here."""
    followed = {
        "From an empty folder to marks",
        "Gradescope",
        "GitHub Actions",
        "otter",
        "nbgrader",
        "pytest",
    }
    assert {title for title, commands in SECTIONS.items() if commands} == followed
    assert PAGE.count("```sh") == 9


@pytest.mark.slow
def test_the_page_is_followed_from_an_empty_folder(tmp_path):
    """To marks; then a folder for GitHub whose check fails as it should, and pytest."""
    environment = environment_of(tmp_path)
    course = tmp_path / "course"
    course.mkdir()
    follow("From an empty folder to marks", course, environment)
    rows = list(csv.DictReader((course / "marks" / "marks.csv").read_text().splitlines()))
    assert [(row["student"], float(row["points"])) for row in rows] == [("ada", 0), ("bob", 0)]
    for name in ("summary.html", "marks.json", "feedback/ada.html", "students/bob.json", "seed"):
        assert (course / "marks" / name).exists()
    follow("GitHub Actions", course, environment)
    workflow = (course / "homework-github" / ".github" / "workflows" / "regard.yml").read_text()
    steps = re.findall(r"- run: (regard .*)", workflow)
    (course / "homework-github" / "rnn_step.py").write_text(RIGHT["rnn-step"])
    done = subprocess.run(
        ["bash", "-c", steps[0]],
        cwd=course / "homework-github",
        env={**environment, "GITHUB_STEP_SUMMARY": str(course / "step.md")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=masked_softmax.py,title=masked-softmax%3A 0 of 10 points::")
    assert "10 of 20 points" in (course / "step.md").read_text()
    first = ours()["rnn-step"].checks.items[0].name
    assert f"rnn-step: {first}" in follow("pytest", course, environment)


@pytest.mark.slow
@pytest.mark.parametrize("grader", NEEDED)
def test_a_grader_from_pypi_gives_points_and_reasons(grader, tmp_path):
    """Its section is followed in an environment of its own, then a wrong and a right answer are graded."""
    environment = environment_of(tmp_path, NEEDED[grader])
    course = tmp_path / "course"
    course.mkdir()
    new = "regard assignment new homework.toml --exercise masked-softmax --exercise rnn-step"
    subprocess.run(["bash", "-euc", new], cwd=course, env=environment, check=True, capture_output=True)
    printed = follow(grader, course, environment)
    given = {"masked-softmax": wrong("masked-softmax"), "rnn-step": RIGHT["rnn-step"]}
    if grader == "otter":
        assert re.search(r"Total Score: 0\.000 / 20\.000", printed)
        student = course / "homework-otter" / "dist" / "student" / "homework.ipynb"
        assert "rows = X.reshape" not in student.read_text()
        fill(student, given)
        printed = follow_last("otter", course / "homework-otter", environment)
        assert re.search(r"Total Score: 10\.000 / 20\.000", printed)
        results = (course / "homework-otter" / "results.json").read_text()
        assert "the lengths are ignored" in results
    else:
        assert points_of(course) == {"ada": 0}
        (course / "submitted" / "bob").mkdir()
        shutil.copytree(course / "release" / "homework", course / "submitted" / "bob" / "homework")
        fill(course / "submitted" / "bob" / "homework" / "homework.ipynb", given)
        for command in SECTIONS["nbgrader"].splitlines()[-3:]:
            subprocess.run(["bash", "-euc", command], cwd=course, env=environment, check=True)
        assert points_of(course)["ada"] == 0
        assert 10 < points_of(course)["bob"] < 15
        assert "the lengths are ignored" in (course / "feedback/bob/homework/homework.html").read_text()


def follow_last(title, folder, environment):
    script = ["bash", "-euc", SECTIONS[title].strip().splitlines()[-1]]
    return subprocess.run(
        script, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def points_of(course):
    rows = csv.DictReader((course / "grades.csv").read_text().splitlines())
    return {row["student_id"]: float(row["score"]) for row in rows}


@pytest.mark.slow
def test_gradescopes_scripts_run_as_in_its_container(tmp_path):
    """The zip is unpacked into source/, setup.sh run there, and run_autograder beside a submission."""
    dist = tmp_path / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = dist.glob("*.whl")
    environment = environment_of(tmp_path)
    (tmp_path / "homework.toml").write_text(
        "hidden = ['robustness']\nshow_hidden = 'never'\n"
        "deadline = 2026-11-16T00:00:00Z\nlate_per_day = 0.1\n"
        "[exercise.masked-softmax]\n[exercise.rnn-step]\n"
    )
    command = f"{SECTIONS['Gradescope'].strip()} --wheel {wheel}"
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    home = tmp_path / "autograder"
    for name in ("source", "submission", "results"):
        (home / name).mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "homework-gradescope.zip") as archive:
        archive.extractall(home / "source")
        for info in archive.infolist():
            (home / "source" / info.filename).chmod(info.external_attr >> 16)
    shutil.copy2(home / "source" / "run_autograder", home / "run_autograder")
    plain = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([home / "source" / "setup.sh"], cwd=home, env=plain, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"what regard needs cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (home / "submission" / "answers.py").write_text(wrong("masked-softmax") + "\n\n" + RIGHT["rnn-step"])
    metadata = {"created_at": "2026-11-17T12:00:00.123456+00:00"}
    (home / "submission_metadata.json").write_text(json.dumps(metadata))
    subprocess.run([home / "run_autograder"], cwd=home, check=True, env=plain)
    results = json.loads((home / "results" / "results.json").read_text())
    rows = {row["name"]: row for row in results["tests"]}
    assert rows["rnn-step"]["score"] == rows["rnn-step: hidden checks"]["score"] == 5
    assert rows["rnn-step: hidden checks"]["visibility"] == "hidden"
    assert "the lengths are ignored" in rows["masked-softmax"]["output"]
    assert rows["2 days late"]["score"] < -2
    assert results["score"] == pytest.approx(sum(row["score"] for row in results["tests"]), abs=0.01)
    # The plugin of pytest comes with the wheel.
    code = "from importlib.metadata import entry_points as e; print(e(group='pytest11')['regard'].value)"
    python = home / "source" / "env" / "bin" / "python"
    named = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert named.strip() == "regard.checking.pytest_plugin"


# What the ten first students did, and their points worked by hand from the counts of the checks that passed,
# which the seed settles. A wrong masked-softmax has 2 of 12 values, its gradients and 7 of 10 of robustness:
# 10 x 2/12 x (6 + 2 + 2 x 7/10) / 10 x 0.5 = 0.78. The others, in the same order:
# rnn-step, and lstm-step too, 10 x 1/6 x (6 + 0 + 2 x 1/7) / 10 x 0.5 = 0.52,
# dot-product-attention 10 x 5/13 x (6 + 2 + 2 x 2/9 + 2 x 2/4) / 12 x 0.5 = 1.51,
# multi-head 10 x 3/11 x (6 + 0 + 2 x 2/8 + 2 x 2/3) / 12 x 0.5 = 0.89.
BY_HAND = {
    "student000": 10 + 0 + 10 + 10 + 0,
    "student001": 0 + 0.52 + 10 + 0 + 0.89,
    "student002": 10 + 10 + 0 + 10 + 10,
    "student003": 0 + 0 + 0.52 + 10 + 0,
    "student004": 0.78 + 10 + 10 + 0 + 10,
    "student005": 10 + 0 + 0 + 1.51 + 10,
    "student006": 0 + 0.52 + 10 + 10 + 0,
    "student007": 10 + 10 + 0 + 0 + 0.89,
    "student008": 10 + 0 + 0.52 + 10 + 10,
    "student009": 0 + 10 + 10 + 0 + 0,
}


@pytest.mark.slow
def test_a_hundred_students_are_graded_also_when_it_is_broken_off(tmp_path):
    """Killed on the way, then resumed: every answer earns what it should, ten sums are those by hand."""
    done = write_class(tmp_path / "submissions", 100)
    (tmp_path / "homework.toml").write_text(example("Attention, part one", list(FIVE)))
    (tmp_path / "marks" / "students").mkdir(parents=True)
    (tmp_path / "marks" / "seed").write_text("23")
    command = [sys.executable, "-m", "regard", "assignment", "grade", "homework.toml", "submissions"]
    options = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    first = subprocess.Popen(command, **options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "marks" / "students").glob("*.json"))) < 9:
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(command, **options, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    kept = int(re.search(r"(\d+) of 100 had not changed", second.stderr)[1])
    assert 9 <= kept < 100
    rows = {
        row["student"]: row
        for row in csv.DictReader((tmp_path / "marks" / "marks.csv").read_text().splitlines())
    }
    assert list(rows) == list(done)
    for student, points in BY_HAND.items():
        assert float(rows[student]["points"]) == pytest.approx(points, abs=0.011), student
    for student, kinds_done in done.items():
        for id, kind in kinds_done.items():
            points = float(rows[student][id])
            assert points == 10 if kind in ("right", "twice") else points < 5, (student, id, kind)
            assert kind in ("right", "twice", "wrong") or points == 0, (student, id, kind)
        missing = {id for id, kind in kinds_done.items() if kind in ("broken", "starter", "empty", "missing")}
        assert set(filter(None, rows[student]["not answered"].split(", "))) == missing
    assert len(list((tmp_path / "marks" / "feedback").glob("*.html"))) == 100

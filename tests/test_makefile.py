"""Setting up: nothing is installed twice, and what is missing is named."""

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path):
    """The repository's set-up files, all of one age, and an environment with only its stamps."""
    (tmp_path / ".venv").mkdir()
    for age, name in enumerate(("pyproject.toml", "constraints.txt", "Makefile")):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    for age, stamp in enumerate((".python", ".runtime", ".dev")):
        (tmp_path / ".venv" / stamp).touch()
        os.utime(tmp_path / ".venv" / stamp, (2000 + age, 2000 + age))
    return tmp_path


def make(folder, *arguments, **extra):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env={**environment, **extra}, capture_output=True, text=True
    )


@pytest.mark.parametrize("target", ["look", "test"])
def test_an_unchanged_tree_installs_nothing(folder, target):
    """With stamps newer than what they were made from, a target only does its work."""
    planned = make(folder, "-n", target)
    assert planned.returncode == 0
    assert "install" not in planned.stdout


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_needed_installs_again(folder, changed):
    """A newer list of dependencies is installed before anything runs, always to the exact versions."""
    os.utime(folder / changed, (3000, 3000))
    planned = make(folder, "-n", "test").stdout
    installs = [line for line in planned.splitlines() if " install " in line]
    assert len(installs) >= 4
    assert all("--constraint constraints.txt" in line for line in installs)
    assert "-m venv" not in planned


def test_other_processors_are_played_with_every_setting(folder):
    """`make test-cpus` plans each instruction set of each library, with one thread and with two."""
    planned = make(folder, "-n", "test-cpus").stdout
    for setting in (
        *("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=SSE41"),
        *("ONEDNN_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2", "REGARD_TEST_THREADS=2"),
    ):
        assert setting in planned
    paths = [ROOT / word for word in planned.split() if word.startswith("tests/")]
    assert paths
    assert all(path.exists() for path in paths)


def test_looking_needs_no_test_tools(folder):
    """`make look` installs what the library needs and none of the tools that test it."""
    (folder / ".venv" / ".runtime").unlink()
    (folder / ".venv" / ".dev").unlink()
    planned = make(folder, "-n", "look").stdout
    assert "--editable ." in planned
    assert "[dev" not in planned


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "Python is missing: apt-get install -y python3 python3-venv"),
        ('[ "$1" = -V ] && echo Python 3.9.2 || exit 1', "needs Python >= 3.11, and fake is Python 3.9.2"),
        (
            'case "$2" in *ensurepip*) exit 1;; esac',
            "Python's venv is missing: apt-get install -y python3-venv",
        ),
    ],
    ids=["no python", "old python", "no venv"],
)
def test_what_the_machine_lacks_is_named(folder, tmp_path, script, message):
    """Set-up that cannot begin says what to install, and leaves no environment that looks ready."""
    shutil.rmtree(folder / ".venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    if script is not None:
        (tools / "fake").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "fake").chmod(0o755)
    refused = make(folder, "look", "PYTHON=fake", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    assert refused.returncode != 0
    assert message in refused.stdout
    assert not (folder / ".venv").exists()


def test_the_versions_installed_are_the_exact_ones_named():
    """No package here has another version than constraints.txt says."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    exact = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    other = {}
    for name, wanted in exact.items():
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # needed on another platform or by a part not installed here
        if found != wanted:
            other[name] = f"{found} is installed, {wanted} is named"
    assert other == {}
    assert exact["torch"] == "2.13.0"

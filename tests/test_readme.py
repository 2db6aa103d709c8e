"""What the README tells a reader to type works."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
EXAMPLES = [block for language, block in BLOCKS if language == "python"]
COMMANDS = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]

NOT_RUN_HERE = {
    "apt-get install -y git make python3-venv": "a test installs nothing on the machine",
    "make test": "this is it",
    "pip install regard": "there is no release yet; test_package.py installs the wheel",
}


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like the repository set up, with this environment for its own."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs(number, tmp_path):
    """A code block of the README runs by itself, as pasted."""
    run([sys.executable, "-W", "error", "-c", EXAMPLES[number]], tmp_path)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in NOT_RUN_HERE])
def test_a_command_of_the_readme_runs(command, folder):
    """A command of the README succeeds, in an environment that is already set up."""
    if command.startswith("make "):
        # The environment counts as installed, whatever the age of its stamp: a test installs nothing.
        command = command.replace("make ", "make -o .venv/.runtime -o .venv/.dev ", 1)
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(["bash", "-c", f"PATH={shlex.quote(path)}; {command}"], folder)


def test_make_look_draws_on_the_terminal_and_writes_a_picture(folder):
    """The README's first command shows the words of a heat map and writes the picture it names."""
    shown = run(["make", "-o", ".venv/.runtime", "look"], folder)
    assert "██" in shown
    assert "out/look.png" in shown
    assert (folder / "out" / "look.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_opens_with_how_to_begin():
    """Two commands in a checkout, pip beside them, then what a fresh Debian machine lacks."""
    debian = "apt-get install -y git make python3-venv"
    assert COMMANDS[:4] == ["make look", "make test", "pip install regard", debian]
    assert set(NOT_RUN_HERE) <= set(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/ARCHITECTURE.md"])
def test_links_to_files_lead_somewhere(page):
    """Every picture and file a page links to is in the repository."""
    text = (ROOT / page).read_text()
    targets = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in targets if not (ROOT / page).parent.joinpath(link).exists()] == []

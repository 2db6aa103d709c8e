"""What an assignment asks of an answer's text: functions it may use, its lines, shape comments, PEP 8."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from regard.checking.spec import Exercise
from regard.checking.submission import Definition, Submission, tree_of

# Ways to reach a function without writing its name: not for answers in which names are looked at.
ROUNDABOUT = ("getattr", "eval", "exec", "__import__", "importlib", "globals", "vars", "__dict__")
ALWAYS = ("Module", "Tensor")  # what a signature needs is allowed
RUFF_SECONDS = 30.0


def answer(submission: Submission, exercise: Exercise) -> list[Definition]:
    """The definitions that an answer is made of: those asked for, and what they use of the same file."""
    known = {definition.name: definition for definition in submission.definitions}
    parts: dict[str, Definition] = {}
    names = [name for name in exercise.names if name in known]
    while names:
        name = names.pop()
        parts[name] = known[name]
        used = {node.id for node in ast.walk(known[name].node) if isinstance(node, ast.Name)}
        names += [other for other in used if other in known and other not in parts]
    return list(parts.values())


def untouched(parts: list[Definition], exercise: Exercise) -> bool:
    """Whether an answer is the starter as it was handed out."""
    written = {part.name: ast.dump(part.node) for part in parts}
    return all(written.get(name) == ast.dump(exercise.definitions[name]) for name in exercise.names)


def n_line(parts: list[Definition]) -> int:
    """Lines of code: comments, docstrings and empty lines do not count, and neither does `;` save any."""
    total = 0
    for part in parts:
        tree = ast.parse(ast.unparse(part.node))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        total += len(ast.unparse(tree).splitlines())
    return total


def refused(
    submission: Submission, parts: list[Definition], allow: Collection[str], forbid: Collection[str]
) -> list[str]:
    """The names that an answer uses and may not, as they stand in it.

    `forbid` is about any name or attribute, by its last part. `allow` is about what is reached through an
    import: `torch.softmax` or `softmax` in it allows `F.softmax`. Methods of tensors have no such name.
    """
    if not allow and not forbid:
        return []
    imports: dict[str, str] = {}
    for node in (node for cell in submission.cells for node in ast.walk(tree_of(cell))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.name if above or alias.asname else alias.name.partition(".")[0]
                imports[alias.asname or bound] = above + bound
    last = {name.rpartition(".")[2] for name in forbid} | set(ROUNDABOUT)
    wrong: dict[str, None] = {}
    for part in parts:
        inner = {id(node.value) for node in ast.walk(part.node) if isinstance(node, ast.Attribute)}
        for node in ast.walk(part.node):
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            shown = ast.unparse(node)
            root, _, rest = shown.partition(".")
            whole = f"{imports.get(root, root)}.{rest}".rstrip(".")
            if last & set(whole.split(".")):
                wrong[shown] = None
            outside = root in imports and id(node) not in inner and isinstance(node.ctx, ast.Load)
            if allow and outside and not {whole, shown, whole.rpartition(".")[2]} & {*allow, *ALWAYS}:
                wrong[shown] = None
    return list(wrong)


def style_findings(paths: list[Path], line_length: int) -> list[str] | None:
    """What ruff finds against PEP 8, a line each; None where ruff is not installed."""
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        return None
    options = "--isolated --no-cache --preview --select=E,W --exit-zero --output-format=json".split()
    command = [ruff, "check", *options, f"--line-length={line_length}", "--", *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=RUFF_SECONDS)
        findings = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return [
        f"{Path(finding['filename']).name}, line {finding['location']['row']}: {finding['message']}"
        for finding in findings
        if str(finding["code"])[:1] in ("E", "W")
    ]

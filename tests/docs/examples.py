"""Run every example of the reference after the first alone: `python tests/docs/examples.py`.

Where a line says what type it makes, it must be so. Cells are run from files: `regard.check` wants that.
"""

import ast
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
from beartype.door import is_bearable

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from book import examples

mpl.use("agg")


def run(cell: str, path: Path, names: dict[str, Any]) -> None:
    """Run a cell with `names`, and compare what it says of types."""
    path.write_text(cell, encoding="utf-8")
    exec(compile(cell, path, "exec"), names)
    for line in ast.walk(ast.parse(cell)):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            value, hint = names[line.target.id], ast.unparse(line.annotation)
            if not is_bearable(value, eval(hint, names)):
                raise TypeError(f"{line.target.id} is a {type(value).__name__}, not {hint}:\n{cell}")


if __name__ == "__main__":
    first, cells = examples()
    shared: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (cell, _) in enumerate(cells):
            run(cell, Path(folder, f"cell_{number}.py"), shared if cell == first else dict(shared))
    print(f"{len(cells)} examples ran")

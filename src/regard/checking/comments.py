"""Shape comments such as `# [b, s, h] -> [b, h, s]`, compared with the shapes at run time.

They are read from a source here; `child/watcher.py` records the shapes.
"""

import ast
import io
import re
import tokenize
from contextlib import suppress

from regard.checking.child.messages import SeenShapes, ShapeNote
from regard.checking.expressions import evaluated, parse
from regard.checking.syntax import parsed
from regard.errors import ArgumentError

SHAPE = re.compile(r"[\[(]([A-Za-z0-9_.*/+\-, ]+)[\])]")
COMMENT = re.compile(
    r"#\s*(?:shape\s*:?\s*)?([\[(][^\])]*[\])])(\s*@\s*[\[(][^\])]*[\])])?"
    r"(?:\s*(?:->|=>|→|=)\s*([\[(][^\])]*[\])]))?\s*$"
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
Sizes = dict[str, int]
MOST_WAYS = 64
EVERY_SHAPE = "a shape comment on every line"  # that makes a tensor: the name of a check


def dims(text: str) -> list[str] | None:
    """The dimensions of "[b, s, h]", or None when it is something else.

    >>> dims("(batch, 2*d)")
    ['batch', '2*d']
    """
    inside = SHAPE.fullmatch(text.strip())
    parts = [part.strip() for part in inside[1].split(",")] if inside is not None else []
    return [part for part in parts if part] or None


def shape_notes(source: str, label: str, *, silent: bool = False) -> list[ShapeNote]:
    """Return every shape comment beside an assignment or a return, or alone on the line below it.

    With `silent`, such statements without a comment too, as notes without text: whether they make a tensor
    is known when they have run.
    """
    statements: dict[int, tuple[str, list[str], int]] = {}  # last line -> target, names used, first line
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return) and node.value:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if len(targets) == 1 and isinstance(targets[0], ast.Name | ast.Attribute | None):
                target = ast.unparse(targets[0]) if targets[0] is not None else ""
                loads = sorted({name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)})
                statements[node.end_lineno or node.lineno] = (target, loads, node.lineno)
    notes: list[ShapeNote] = []
    told: set[int] = set()  # lines that have their comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        line = token.start[0]
        if match is None or (match[2] and not match[3]):
            continue
        if line not in statements and token.line.lstrip().startswith("#"):
            line -= 1
        if line not in statements or line in told:
            continue
        told.add(line)
        before, after = dims(match[1]), dims(match[3] or match[1])
        if before is not None and after is not None:
            target, loads, first = statements[line]
            text = token.string.lstrip("# ")
            starts_from = before if match[3] and not match[2] else None
            notes.append(ShapeNote(label, first, line, text, target, loads, starts_from, after))
    if silent:
        for line, (target, loads, first) in statements.items():
            if line not in told:
                notes.append(ShapeNote(label, first, line, "", target, loads, None, []))
    return notes


def uncommented(notes: list[ShapeNote], records: list[SeenShapes]) -> list[str]:
    """Return the lines, in order, that made a tensor and have no shape comment."""
    made = {record.note for record in records if record.after is not None and not notes[record.note].text}
    lines = sorted((notes[note].label, notes[note].line) for note in made)
    return [f"{label}line {line}" for label, line in lines]


def disagreements(notes: list[ShapeNote], records: list[SeenShapes]) -> dict[int, str]:
    """A sentence on each comment that the shapes contradict; a symbol keeps its size within one call.

    >>> note = ShapeNote("", 3, 3, "[b, s]", "x", [], before=None, after=["b", "s"])
    >>> disagreements([note], [SeenShapes(note=0, call=1, before={}, after=[2, 3, 5])])
    {0: 'line 3 says [b, s], and the shape is [2, 3, 5].'}
    """
    wrong = _contradicted(notes, records)
    if len(wrong) > 1:
        # One wrong comment makes right ones below it look wrong: is it the only one?
        for note in dict.fromkeys(record.note for record in records):
            others = [record for record in records if record.note != note]
            if not _contradicted(notes, others):
                alone = _contradicted(notes, [*others, *(one for one in records if one.note == note)])
                return {note: alone[note]} if note in alone else wrong
    return wrong


def _contradicted(notes: list[ShapeNote], records: list[SeenShapes]) -> dict[int, str]:
    """Say of each comment, in order, whether it contradicts the shapes and the comments before it."""
    sentences: dict[int, str] = {}
    sizes: dict[int, list[Sizes]] = {}  # by call: every way to read the comments so far
    for record in records:
        note = notes[record.note]
        if not note.text:
            continue
        known = sizes.get(record.call, [{}])
        where = f"{note.label}line {note.line} says {note.text}, and"
        for says, dimensions, shapes in (
            ("it starts from", note.before, record.before.values()),  # which of its tensors is not said
            ("the shape is", note.after, [record.after]),
        ):
            there = [shape for shape in shapes if shape is not None]
            if known and there and dimensions is not None:
                words = [word for word in dimensions if NAME.fullmatch(word) and word in known[0]]
                meant = ", ".join(f"{word} = {known[0][word]}" for word in dict.fromkeys(words))
                known = _bound(dimensions, there, known)
                if not known:
                    shapes_there = " or ".join(map(str, there))
                    elsewhere = f", where {meant}" if meant else ""
                    sentences.setdefault(record.note, f"{where} {says} {shapes_there}{elsewhere}.")
        sizes[record.call] = known or sizes.get(record.call, [{}])
    return sentences


def _bound(dimensions: list[str], shapes: list[list[int]], known: list[Sizes]) -> list[Sizes]:
    """Every way in which `dimensions` are one of the shapes, beside what is known."""
    ways = (_bind(dimensions, shape, sizes) for sizes in known for shape in shapes)
    unique = {tuple(sorted(way.items())): way for way in ways if way is not None}
    return list(unique.values())[:MOST_WAYS]


def _bind(dimensions: list[str], shape: list[int], known: Sizes) -> Sizes | None:
    """The sizes that make `dimensions` equal to `shape`, or None when nothing does."""
    if len(dimensions) != len(shape):
        return None
    bound = dict(known)
    pairs = list(zip(dimensions, shape, strict=True))
    if any(bound.setdefault(word, size) != size for word, size in pairs if NAME.fullmatch(word)):
        return None
    names = {word.replace(".", "_"): size for word, size in bound.items()}
    for word, size in pairs:  # numbers, and sums, products and quotients of sizes that are known
        if not NAME.fullmatch(word) and set(NAME.findall(word)) <= set(bound):
            with suppress(ArgumentError, ArithmeticError):
                formula = parse(word.replace("//", "/").replace(".", "_"), names)
                if float(evaluated(formula, names)) == size:
                    continue
            return None
    return bound

"""What students handed in, in any layout, copied into a folder for each: nothing there is trusted.

submissions/ada/masked_softmax.py          a folder for each student, and a zip in it is unpacked
submissions/ada.zip                        a zip for each
submissions/ada_masked_softmax.py          files with names: what is left without the exercise's
submissions/Ada Lovelace_123_assignsubmission_file/        as Moodle names them
submissions/lovelaceada_LATE_123_456_hw.ipynb              as Canvas names them
"""

import hashlib
import re
import stat
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from regard.errors import LoadError

MOST_BYTES = 1 << 26  # of one student's files, unpacked
MOST_FILES = 1000
CODE = (".py", ".ipynb")
# A name and a number, which tells students of one name apart.
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<number>\d+)_assignsubmission_\w+$")
CANVAS = re.compile(r"^(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_")
Member = tuple[str, Callable[[], Any]]  # a file's name, with "/", and what opens it
LEFT_OUT = ("__pycache__", "__MACOSX", "node_modules", "site-packages")


@dataclass
class HandIn:
    """One student's files, where they lie; `copy_to` puts them into a folder."""

    student: str
    sources: list[Path] = field(default_factory=list)  # folders, zips and files
    problems: list[str] = field(default_factory=list)  # what was left out, and why

    @property
    def submitted(self) -> datetime:
        """When the newest file that was handed in was last changed, by this machine's clock."""
        inside = (path for source in self.sources for path in (source, *source.rglob("*")))
        files = (path for path in inside if path.is_file() and not path.is_symlink())
        return datetime.fromtimestamp(max((path.stat().st_mtime for path in files), default=0.0))

    def copy_to(self, folder: Path) -> str:
        """Copy what may be an answer or lies beside one, code first; a digest of names and contents."""
        self.problems.clear()
        room, digest = MOST_BYTES, hashlib.sha256()
        with ExitStack() as archives:
            members = [member for source in self.sources for member in self._members(source, archives)]
            members.sort(key=lambda member: (not member[0].endswith(CODE), member[0]))
            for name, opened in members[:MOST_FILES]:
                try:
                    with opened() as file:
                        data = file.read(room + 1)
                    if len(data) > room:
                        most = f"more than {MOST_BYTES >> 20} MB"
                        self.problems.append(f"{name} and what comes after it were left out: {most}.")
                        break
                    path = folder.joinpath(*name.split("/"))
                    while path.exists():  # in a folder and in a zip beside it: both are answers
                        path = path.parent / "again" / path.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    room -= len(data)
                    digest.update(f"{name}\0{len(data)}\0".encode(errors="replace") + data)
                # zlib, bz2 and lzma have errors of their own, and so have encrypted files and odd names.
                except Exception as error:
                    self.problems.append(f"{name[:200]!r} cannot be read: {error}.")
        if len(members) > MOST_FILES:
            self.problems.append(f"{len(members) - MOST_FILES} files were left out: more than {MOST_FILES}.")
        return digest.hexdigest()

    def _members(self, path: Path, archives: ExitStack) -> Iterator[Member]:
        """The files of a file, folder or zip; those of a folder by their names below it."""
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            self.problems.append(f"{path.name!r} was left out: it is a link, or no file.")
        elif path.is_dir():
            for inner in sorted(path.iterdir()):
                if _is_kept(inner.name):
                    above = f"{inner.name}/" * inner.is_dir()
                    yield from ((above + name, opened) for name, opened in self._members(inner, archives))
        elif path.suffix.lower() != ".zip":
            yield path.name, partial(path.open, "rb")
        elif path.stat().st_size > MOST_BYTES:
            self.problems.append(f"{path.name} is not unpacked: it is larger than {MOST_BYTES >> 20} MB.")
        else:
            try:
                archive = archives.enter_context(zipfile.ZipFile(path))
            except Exception as error:
                self.problems.append(f"{path.name} cannot be unpacked: {error}.")
                return
            for info in archive.infolist():
                place = PurePosixPath(info.filename.replace("\\", "/"))
                outside = place.is_absolute() or ".." in place.parts or ":" in info.filename
                if info.is_dir() or not all(map(_is_kept, place.parts)) or place.suffix.lower() == ".zip":
                    continue
                if outside or stat.S_ISLNK(info.external_attr >> 16):
                    why = "it leads out of its folder" if outside else "it is a link"
                    self.problems.append(f"{info.filename[:200]!r} was left out: {why}.")
                else:
                    yield str(place), partial(archive.open, info)


def _is_kept(name: str) -> bool:
    return name == ".." or not (name.startswith(".") or name in LEFT_OUT)


def hand_ins(folder: Path, stems: Collection[str]) -> list[HandIn]:
    """What each student handed in; `stems` are names of files that the assignment itself gives out."""
    if not folder.is_dir():
        raise LoadError(f"{folder} is no folder: submissions are folders, zips or files in one.")
    students: dict[str, HandIn] = {}
    for path in sorted(folder.iterdir()):
        if _is_kept(path.name) and (path.suffix.lower() in (".zip", *CODE) or not path.is_file()):
            name = student_of(path.name if path.is_dir() else path.stem, stems)
            students.setdefault(name, HandIn(name)).sources.append(path)
    if not students:
        raise LoadError(f"{folder} holds no submission: no folder, zip, .py or .ipynb file.")
    return list(students.values())


def student_of(name: str, stems: Collection[str]) -> str:
    """Whose file or folder this is, by its name.

    >>> student_of("ada_masked_softmax", ["masked_softmax"])
    'ada'
    >>> student_of("lovelaceada_LATE_123_456_homework", [])
    'lovelaceada_123'
    """
    if match := MOODLE.match(name) or CANVAS.match(name):
        return f"{match['name']}_{match['number']}"
    for stem in sorted(stems, key=len, reverse=True):
        pattern = rf"(?i)^(?P<before>.*?)[ _.-]*{re.escape(stem)}[ _.-]*(?P<after>.*)$"
        if match := re.match(pattern, name.replace("-", "_")):
            # Of `masked_softmax`, and of `masked_softmax (1)`, nobody's name is left.
            who = name[: len(match["before"])] or name[len(name) - len(match["after"]) :]
            return who if re.search(r"[^\W\d]", who) else name
    return name

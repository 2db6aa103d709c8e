"""What all our dataclasses of tensors can do: list them, change them, go into a file, print in one line."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from regard.errors import ArgumentError, UnsupportedError

Ranges = Mapping[str, tuple[float, float]]  # of fields: at least and at most
Some = TypeVar("Some", bound="Data")


class Data:
    """The base of a dataclass whose fields are tensors, plain values, other `Data`, and tuples of these.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> @dataclass(repr=False)
    ... class Table(Data):
    ...     values: Tensor
    ...     scale: float = 1.0
    >>> Table(torch.zeros(2, 3), 0.5).mapped(lambda tensor: tensor[:1])
    Table(values=float32[1, 3], scale=0.5)
    """

    __slots__ = ()
    word: ClassVar[str]  # by which a file names the class; the class's name unless given
    older_names: ClassVar[Mapping[str, str]] = {}  # of fields, in files written before: the present names

    def __init_subclass__(cls) -> None:
        if "word" not in cls.__dict__:
            cls.word = cls.__name__

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors held, those of other data inside too."""
        return tuple(tensor for _, value in _items(self, "tensors") for tensor in _held(value))

    def mapped(self: Some, change: Callable[[Tensor], Tensor]) -> Some:
        """The same with every tensor changed."""
        changed = {field.name: _mapped(value, change) for field, value in _items(self, "mapped")}
        return replace(self, **changed)  # type: ignore[type-var]  # a dataclass, or _items had raised

    def as_dict(self) -> dict[str, Any]:
        """Tensors and plain values by the names of the fields, other data as such dictionaries."""
        return {"type": self.word} | {f.name: _described(value) for f, value in _items(self, "as_dict")}

    @classmethod
    def from_dict(cls: type[Some], described: Any) -> Some:
        """What `as_dict` described, of this class or one derived from it; raises where something is wrong."""
        if not isinstance(described, Mapping):
            raise ArgumentError(f"a {cls.__name__} is described by a mapping. Got {described!r}.")
        word = described.get("type", cls.word)
        kinds = {kind.word: kind for kind in _derived(cls)}
        if word not in kinds:
            raise ArgumentError(f"no {cls.__name__} is of type {word!r}: there are {', '.join(kinds)}.")
        hints = _hints(kinds[word])  # type: ignore[arg-type]  # a class can be hashed
        older = kinds[word].older_names
        values = {older.get(name, name): value for name, value in described.items() if name != "type"}
        for name, value in values.items():
            if name not in hints:
                raise ArgumentError(f"a {kinds[word].__name__} has no {name!r}.")
            values[name] = fitting(f"{name} of {kinds[word].__name__}", value, hints[name])
        made: Some = kinds[word](**values)
        return made

    def __repr__(self) -> str:
        shown = []
        for field, value in _items(self, "__repr__"):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if default is MISSING or short(value) != short(default):
                shown.append(f"{field.name}={short(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def short(value: object) -> str:
    """A value in a few words: of a tensor its dtype and shape."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 or isinstance(value, Data) else f"{text[:57]}..."


def _items(data: Data, method: str) -> Iterator[tuple[Field[Any], Any]]:
    if not is_dataclass(data):
        raise UnsupportedError(
            f"{type(data).__name__} has no `{method}`: it must be a dataclass, or define that itself."
        )
    return ((field, getattr(data, field.name)) for field in fields(data))


def _held(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, tuple):
        return tuple(tensor for item in value for tensor in _held(item))
    return (value,) if isinstance(value, Tensor) else value.tensors if isinstance(value, Data) else ()


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    return value.mapped(change) if isinstance(value, Data) else value


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_described(item) for item in value]
    return value.as_dict() if isinstance(value, Data) else value


def _derived(cls: type[Data]) -> Iterator[type[Any]]:
    """The class and all derived from it; of the two that a dataclass with slots makes, the right one last."""
    yield cls
    for kind in cls.__subclasses__():
        yield from _derived(kind)


def check_fields(data: Any) -> None:
    """Raise unless every field of a dataclass is of its type, and in the range that its `ranges` give it."""
    for field in fields(data):
        check_field(type(data), field.name, getattr(data, field.name))


def check_field(
    kind: Any, field: str, value: Any, name: str | None = None, most: int | float = math.inf
) -> None:
    """Raise unless `value` may be that field of the dataclass `kind`, and is at most `most`."""
    fitting(name or field, value, _hints(kind)[field])
    least, usual = kind.ranges.get(field, (-math.inf, math.inf))
    most = min(usual, most)
    if isinstance(value, int | float) and not least <= value <= most:
        limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ArgumentError(f"{name or field} must be {limits}. Got {value!r}.")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def fitting(what: str, value: Any, hint: Any) -> Any:
    """The value of a field, which must be of the field's type."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options if value is not None else ():
        origin, inner = get_origin(option), get_args(option)
        if isinstance(option, type) and issubclass(option, Data) and not isinstance(value, Data):
            return option.from_dict(value)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(fitting(what, item, inner[0]) for item in value)
        if origin is Mapping and isinstance(value, Mapping):
            return {name: fitting(what, item, inner[1]) for name, item in value.items()}
        if origin is Literal and value in inner:
            return value
    plain = tuple(option for option in options if get_origin(option) is None)
    if type(value) in (bool, int):  # a bool is an int to Python; a tensor takes no larger int
        fits = type(value) in plain or (type(value) is int and float in plain)
        fits = fits and abs(value) < 2**62
    else:
        fits = isinstance(value, plain)
    if not fits:
        raise ArgumentError(f"{what} must be {' or '.join(map(_word, options))}. Got {short(value)}.")
    return value


def _word(hint: Any) -> str:
    """A type, as a person says it."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "text", NoneType: "None"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))

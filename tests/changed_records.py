"""Every way to change one leaf of what a record is in JSON, by the record's types: a new field, or
a new word, is tried as soon as it is there."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

Path = tuple[str | int, ...]
Change = tuple[Path, Any, Any]  # where, what stands there, and what could stand there
ABSENT = object()
HTML = "<img src=x onerror=alert(1)>"
CLAIM = "the-guarantee-is-epsilon-0.05"  # it has the pattern of a name
CODE = "the_guarantee:is_0.05"
STATISTIC = "released with epsilon 1, charged to 'clinic'"
WORDS = ("name", "made 0a0a0a0a", "0" * 64, "0" * 128, "1.0", STATISTIC)  # a text of each pattern


def changes(record: type, value: Any) -> Iterator[Change]:
    """Each leaf changed, taken away, or put where there is none; lists made shorter and longer. Of
    the elements of a list, the first and the last."""
    yield from _changes(inspect.type_info(record), value, ())


def changed(value: Any, path: Path, other: Any) -> Any:
    """A copy with another value in a place."""
    found = copy.deepcopy(value)
    here = found
    for key in path[:-1]:
        here = here[key]
    if other is ABSENT:
        del here[path[-1]]
    else:
        here[path[-1]] = other
    return found


def everywhere(value: Any, old: Any, new: Any) -> Any:
    """With another value wherever one stands, also in the name of a run."""
    if isinstance(value, dict):
        return {name: everywhere(one, old, new) for name, one in value.items()}
    if isinstance(value, list):
        return [everywhere(one, old, new) for one in value]
    if isinstance(value, str) and isinstance(old, str):
        return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w-])", lambda _: new, value)
    return new if type(value) is type(old) and value == old else value


def place(path: Path) -> str:
    """A leaf's name; those of all rounds, arms and runs have one."""
    return ".".join("*" if isinstance(key, int) else key for key in path)


def _changes(kind: inspect.Type, value: Any, path: Path) -> Iterator[Change]:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    some = [one for one in kinds if not isinstance(one, inspect.NoneType)]
    kind = next((one for one in some if _is(one, value)), some[0])
    if value is None:
        yield path, value, _sample(kind)
        return
    if len(some) < len(kinds):
        yield from ((path, value, other) for other in (None, ABSENT))
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            for field in kind.fields:
                inner, one = (*path, field.encode_name), value.get(field.encode_name, ABSENT)
                if one is ABSENT:
                    yield inner, one, _sample(field.type)
                else:
                    yield from _changes(field.type, one, inner)
            if len(some) > 1:
                inner = (*path, kind.tag_field)
                yield from ((inner, kind.tag, one.tag) for one in some if one is not kind)
        case inspect.DictType():
            for name, one in value.items():
                yield from _changes(kind.value_type, one, (*path, name))
        case inspect.TupleType():
            for number, one in enumerate(kind.item_types):
                yield from _changes(one, value[number], (*path, number))
        case inspect.VarTupleType() | inspect.ListType():
            for number in sorted({0, len(value) - 1} & {*range(len(value))}):
                yield from _changes(kind.item_type, value[number], (*path, number))
            longer = value + (value or [_sample(kind.item_type)])[-1:]
            yield from ((path, value, other) for other in (longer, value[:-1]) if other != value)
        case _:
            yield from ((path, value, other) for other in (*_others(kind, value), ABSENT))


def _is(kind: inspect.Type, value: Any) -> bool:
    """Whether it is the one of several types that a value has."""
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        return kind.tag in (None, value.get(kind.tag_field))
    number = {inspect.IntType: int, inspect.FloatType: float}.get(type(kind))
    return number is None or type(value) is number


def _others(kind: inspect.Type, value: Any) -> list[Any]:
    """What somebody may write in a leaf's place."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value - 1, value + 1]
    if isinstance(value, float):
        return [0.95 * value, 1.1 * value]
    if isinstance(kind, inspect.LiteralType):
        return [HTML, *(word for word in kind.values if word != value)]
    return [HTML, CLAIM, CODE, f"{value}1"]


def _sample(kind: inspect.Type) -> Any:
    """Some value of a type."""
    match kind:
        case inspect.LiteralType(values=(first, *_)):
            return first
        case inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            told = {one.encode_name: _sample(one.type) for one in fields if one.required}
            return told | ({} if tag is None else {tag_field: tag})
        case inspect.VarTupleType(item_type=item, min_length=least):
            return [_sample(item)] * (least or 1)
        case inspect.UnionType(types=kinds):
            return _sample(kinds[0])
        case inspect.StrType(pattern=pattern):
            return next(word for word in WORDS if re.search(pattern or "", word))
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 0.5
    return {}

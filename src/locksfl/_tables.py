"""A frozen dataclass from a TOML table: unknown keys and wrong types are refused by name."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from locksfl._validate import nearest, one_of


def build_table(kind: Any, table: Any, where: str) -> Any:
    """A dataclass from a table: unknown keys and wrong types refused."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} = {table!r}: expected a table")
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            full = f"{where}.{key}".lstrip(".")
            raise ValueError(
                f"{full} = {table[key]!r}: unknown setting{nearest(key, hints)}; "
                f"known here: {', '.join(hints)}"
            )
    for item in dataclasses.fields(kind):
        required = item.default is item.default_factory is dataclasses.MISSING
        if required and item.name not in table:
            raise ValueError(f"{where}.{item.name} is missing".lstrip("."))
    values = {k: typed_value(hints[k], v, f"{where}.{k}".lstrip(".")) for k, v in table.items()}
    return kind(**values)


def _item_name(item: Any, where: str) -> str:
    """An arm is named in messages: arm.locks."""
    return f"{where}.{item['name']}" if isinstance(item, dict) and "name" in item else where


def typed_value(hint: Any, value: Any, where: str) -> Any:
    """A value of the hinted type; a whole number is fine where a float is expected."""
    if dataclasses.is_dataclass(hint):
        return build_table(hint, value, where)
    if typing.get_origin(hint) is typing.Literal:
        one_of(typing.get_args(hint), **{where: value})
        return value
    if typing.get_origin(hint) is dict:  # a free table
        if not isinstance(value, dict):
            raise ValueError(f"{where} = {value!r}: expected a table")
        return dict(value)
    if typing.get_origin(hint) in (list, tuple):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} = {value!r}: expected a list")
        inner = typing.get_args(hint)[0]
        return [typed_value(inner, item, _item_name(item, where)) for item in value]
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in allowed:
        if typing.get_origin(option) in (list, tuple):
            return typed_value(option, value, where)
        if option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(option, type) and isinstance(value, option):
            if isinstance(value, bool) and option is not bool:
                continue
            return value
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    expected = " or ".join(names[o] for o in allowed if o in names)
    raise ValueError(f"{where} = {value!r}: expected {expected}")

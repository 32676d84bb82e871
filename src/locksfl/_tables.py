"""A frozen dataclass of settings, from a TOML table or from Python: checked by its annotations.

Unknown keys, wrong types and values out of range are refused in one line that names the setting as
a file spells it: train.rounds. A check is stated once, beside its field.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, TypeAlias

from locksfl._validate import (
    at_most,
    count,
    in_order,
    nearest,
    one_of,
    positive,
    probability,
    whole,
)

Record = dict[str, Any]  # a table of TOML, before its settings are checked
Value: TypeAlias = "bool | int | float | str | Sequence[Value] | Mapping[str, Value] | None"
Json: TypeAlias = dict[str, Value]  # an object of JSON, as it is read or written
Hints = dict[str, Any]  # annotations, by field

Positive = Annotated[float, positive]
Probability = Annotated[float, probability]
Count = Annotated[int, count]  # 1, 2, 3, ...
Count32 = Annotated[int, count, functools.partial(at_most, 2**31 - 1)]  # of a compiled program
Whole = Annotated[int, whole]  # 0, 1, 2, ...

_TYPES: dict[type, tuple[Any, str]] = {  # what is taken for one, and its name in messages
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "true or false"),
    list: ((list, tuple), "a list"),
    dict: (dict, "a table"),
}


class Settings:
    """The base of a frozen dataclass whose fields are checked when it is made, and converted: 1.0
    for 1 where a float is expected.

    `where` is its table in a file, and stands before its fields in messages. `public`: anybody may
    know its settings, but for those that `Config.public` takes out.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Train(Settings, where="train"):
    ...     rounds: Count = 100
    >>> Train(rounds=0)
    Traceback (most recent call last):
    ValueError: train.rounds = 0: expected a whole number >= 1
    """

    where: ClassVar[str] = ""
    public_table: ClassVar[bool] = False

    def __init_subclass__(cls, where: str = "", public: bool = False) -> None:
        cls.where, cls.public_table = where, public

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():  # type: ignore[arg-type]
            value = typed_value(hint, getattr(self, name), _path(self.where, name))
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Refuse fields that contradict one another; a subclass says which."""

    def given(self) -> dict[str, Any]:
        """Returns the fields that are set, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def only_with(self, field: str, *, required: bool = False, **owners: str) -> None:
        """Refuse fields that belong to another choice.

        Args:
            field: the field that is the choice.
            required: whether a choice needs all fields that belong to it.
            owners: by field, the choice that it belongs to; such a field is None unless set.
        """
        chosen, table = getattr(self, field), self.where.rpartition(".")[2]
        choice = f"{table if field in ('name', 'kind') else f'{self.where}.{field}'} {chosen!r}"
        remedy = f"; expected the whole table: --set '{self.where}={{{field}=\"{chosen}\"}}'"
        for name, owner in owners.items():
            value = getattr(self, name)
            if value is None and required and owner == chosen:
                raise ValueError(f"{self.where}.{name} is missing: {choice} needs it")
            if value is not None and owner != chosen:
                refusal = f"{self.where}.{name} = {value!r}: {choice} takes no {name}"
                raise ValueError(refusal + remedy if required else refusal)

    def in_order(self, lower: str, upper: str) -> None:
        """Refuse a second field that is below the first; None sets no limit."""
        in_order(**{f"{self.where}.{name}": getattr(self, name) for name in (lower, upper)})


def toml_table(text: str, source: Any) -> Record:
    """The tables of a TOML text; `source` names it in a refusal."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: not valid TOML: {error}") from None


def build_table(kind: Any, table: Any, where: str) -> Any:
    """A dataclass from a table of a TOML file.

    Args:
        kind: the dataclass.
        table: its values by field; tables within it become dataclasses too.
        where: its name in messages, "" for the file itself.

    Returns:
        An instance of `kind`. Unknown keys, missing ones and wrong values are a ValueError.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{where} = {table!r}: expected a table")
    hints = hints_of(kind)
    refuse_unknown(table, hints, where)
    for item in dataclasses.fields(kind):
        required = item.default is item.default_factory is dataclasses.MISSING
        if required and item.name not in table:
            raise ValueError(f"{_path(where, item.name)} is missing")
    return kind(**{key: typed_value(hints[key], table[key], _path(where, key)) for key in table})


def refuse_unknown(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Refuse a table that has other settings than the known ones, and offer the nearest one."""
    known = list(known)
    for key, value in table.items():
        if key not in known:
            raise ValueError(
                f"{_path(where, key)} = {value!r}: unknown setting{nearest(key, known)}; "
                f"known here: {', '.join(known)}"
            )


def or_null(value: float | None) -> float | None:
    """As JSON has it, which knows no infinity and no NaN: null."""
    return None if value is None or not math.isfinite(value) else float(value)


def or_infinite(value: float | None) -> float:
    """An epsilon that JSON has as null."""
    return math.inf if value is None else value


@functools.cache
def hints_of(kind: Any) -> Hints:
    """The annotation of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def _path(where: str, name: str) -> str:
    return f"{where}.{name}".lstrip(".")


def typed_value(hint: Any, value: Any, where: str) -> Any:
    """The value in the hinted type, or a refusal."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value = typed_value(inner[0], value, where)
        for check in inner[1:]:
            check(**{where: value})
        return value
    if origin is typing.Literal:
        one_of(inner, **{where: value})
        return value
    if dataclasses.is_dataclass(hint):
        return value if dataclasses.is_dataclass(value) else build_table(hint, value, where)
    options = [hint]
    if origin in (typing.Union, types.UnionType):
        options = [option for option in inner if option is not type(None)]
        if value is None and len(options) < len(inner):
            return None
        if len(options) == 1:
            return typed_value(options[0], value, where)
    for option in options:
        plain = typing.get_origin(option) or option
        if plain not in _TYPES:
            return value  # for the class itself to check
        if isinstance(value, _TYPES[plain][0]) and isinstance(value, bool) == (plain is bool):
            if plain is list:
                (kind,) = typing.get_args(option)
                return [typed_value(kind, item, named(where, item)) for item in value]
            with suppress(OverflowError):  # a whole number that no float holds
                return plain(value)
    plain = [typing.get_origin(option) or option for option in options]
    names = (_TYPES[k][1] for k in plain if not (k is int and float in plain))
    expected = " or ".join(names)
    raise ValueError(f"{where} = {value!r}: expected {expected}")


def named(where: str, item: Any) -> str:
    """How messages name an item of a list: an arm by its own name, arm.locks."""
    return f"{where}.{item['name']}" if isinstance(item, dict) and "name" in item else where

"""What rounds release, as data: the one record that accountants, statements and `verify` read.

An event says what was done and never what it costs: sensitivities, mu and RDP belong to the
accountants, each of which names the kinds that it can charge. The names in JSON:

    exact                   something leaves without noise: epsilon is infinite
    poisson-gaussian        noise on a sum over clients drawn by independent coins
    joint-poisson-gaussian  two sums of each round: one over the clients drawn, then one over those
                            of them that a second coin draws, of at most `second_rate`
    chosen                  every round is one of `choices`, whichever earlier releases decide on
    turns                   noise on sums over groups that take turns in public
    gaussian                a client's own noisy messages
    filtered-gaussian       the same, until a client's own budget is spent

A noise multiplier is std over the zero-out sensitivity. Numbers become Python floats when a record
is made: dp_accounting 0.6.0 silently charges too little for an int or a float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from locksfl._tables import Json
from locksfl._validate import one_of
from locksfl.methods.releases import (
    OBSERVERS,
    PUBLIC,
    SERVER,
    Observer,
    Relation,
    as_count,
    as_float,
)

Rate = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
EXPECTED = {Rate: "a rate in (0, 1]", Positive: "a number > 0", Count: "a whole number >= 1"}


@functools.cache
def _numbers(kind: type[Event]) -> dict[str, tuple[Any, bool]]:
    """The fields of an event that are numbers: which kind of number, and whether None is one."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: (number, hint != number)
        for name, hint in hints.items()
        for number in EXPECTED
        if number in (hint, *get_args(hint))
    }


@functools.cache
def _words(kind: type[Event]) -> dict[str, tuple[str, ...]]:
    """The fields of an event that are one of some words."""
    hints = get_type_hints(kind)
    return {k: get_args(hint) for k, hint in hints.items() if get_origin(hint) is Literal}


def _checked(name: str, value: Any, kind: Any) -> float | int:
    number = as_count(name, value) if kind is Count else as_float(name, value)
    low, high = (1, math.inf) if kind is Count else (0, 1 if kind is Rate else math.inf)
    if not (low <= number <= high and number and math.isfinite(number)):
        raise ValueError(f"{name} = {value!r}: expected {EXPECTED[kind]}")
    return number


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="mechanism"):
    """The base of all kinds. Words and the three kinds of numbers are checked whoever makes the
    record: msgspec checks only what it reads, and keeps an int that Python code gives."""

    def __post_init__(self) -> None:
        for name, (kind, optional) in _numbers(type(self)).items():
            if (value := getattr(self, name)) is not None or not optional:
                msgspec.structs.force_setattr(self, name, _checked(name, value, kind))
        for name, words in _words(type(self)).items():
            one_of(words, **{name: getattr(self, name)})


class Exact(Event, frozen=True, tag="exact"):
    """Something leaves as it is: no epsilon, however often."""


class Sampled(Event, frozen=True, tag="poisson-gaussian"):
    """A noised sum over the clients that independent secret coins draw."""

    sampling_rate: Rate  # the probability of a client's coin
    noise_multiplier: Positive


class SampledTwice(Event, frozen=True, tag="joint-poisson-gaussian"):
    """Two noised sums: over the clients that a first secret coin draws, then over those of them
    that a second one draws, whose rate is at most `second_rate`, whatever the first sum was."""

    sampling_rate: Rate  # of the first coin
    first_multiplier: Positive  # of the noise on the first sum
    second_rate: Rate
    noise_multiplier: Positive  # of the noise on the second sum


Coins = Sampled | SampledTwice


class Chosen(Event, frozen=True, tag="chosen"):
    """One of several rounds; which one may depend on everything that was released before.

    Choices may begin with one and the same sum over all clients (rate 1) and be chosen by it: it is
    a Gaussian that costs the same whatever follows, and what follows, sampled anew, is a round of
    its own.
    """

    choices: Annotated[tuple[Coins, ...], Meta(min_length=1)]


class Turns(Event, frozen=True, tag="turns"):
    """A noised sum over a group of clients; groups take turns in public, `separation` rounds apart.
    The noise may be correlated over `bands` rounds by `strategy` (methods/cyclic.py).

    So many rounds of one run are one mechanism; another run begins a cycle anew.
    """

    separation: Count
    noise_multiplier: Positive
    bands: Count = 1
    strategy: tuple[float, ...] = ()


class Message(Event, frozen=True, tag="gaussian"):
    """A client's own noised value. `uploaders`: it is seen only in sums of so many noises."""

    release: Literal["update", "norm"]
    noise_multiplier: Positive
    uploaders: Count | None = None


class Filtered(Event, frozen=True, tag="filtered-gaussian"):
    """A client's own noised values, a norm before each update, until its budget is spent."""

    update_multiplier: Positive
    budget_epsilon: Positive  # what a client keeps for all its releases
    budget_delta: Rate
    budget_relation: Relation
    norm_multiplier: Positive | None = None  # None: no norms are released


Correlated = Turns  # the kinds that have a separation, bands and a strategy
Sum = Coins | Chosen | Correlated
Sent = Message | Filtered
AnyEvent = Exact | Sum | Sent


def mechanism(kind: type[Event]) -> str:
    """The name of a kind in JSON."""
    return str(kind.__struct_config__.tag)


class Rounds(NamedTuple):
    """So many rounds of an event. For turns they are one mechanism, so that this is not the same as
    so many independent copies."""

    event: Event
    rounds: int


EXACT = Rounds(Exact(), 1)
Seen = Sequence[Rounds]  # what one observer sees, all of it together
Terms = Mapping[Observer, tuple[Rounds, ...]]


def with_matrix(seen: Rounds, strategy: tuple[float, ...]) -> Rounds:
    """The same with other coefficients, if its noise may be correlated."""
    if not isinstance(seen.event, Correlated):
        return seen
    return Rounds(msgspec.structs.replace(seen.event, strategy=strategy), seen.rounds)


def for_rounds(terms: Terms, rounds: int) -> Terms:
    """The same events, so many rounds of each."""

    def played(one: Rounds) -> Rounds:
        return one if one == EXACT else Rounds(one.event, rounds)

    return {who: tuple(map(played, seen)) for who, seen in terms.items()}


def to_json(seen: Rounds) -> Json:
    """As a JSON table: the event's fields and the rounds. What is None is left out."""
    if not isinstance(seen.event, AnyEvent):
        raise TypeError(f"{mechanism(type(seen.event))}: expected an event that `from_json` reads")
    table = msgspec.json.decode(msgspec.json.encode(seen.event))
    counted = {} if seen == EXACT else {"rounds": seen.rounds}
    return {name: value for name, value in table.items() if value is not None} | counted


def whole(terms: Terms) -> bool:
    """Whether these are the terms of observers that are known, server and public among them."""
    return {SERVER, PUBLIC} <= terms.keys() <= OBSERVERS.keys() and all(terms.values())


def terms_to_json(terms: Terms) -> Json:
    """All that is released, by observer."""
    return {who: [to_json(one) for one in seen] for who, seen in terms.items()}


def terms_from_json(table: Mapping[Observer, Sequence[Json]]) -> Terms:
    """The inverse."""
    return {who: tuple(map(from_json, seen)) for who, seen in table.items()}


def from_json(table: Json) -> Rounds:
    """The inverse. An unknown kind, an unknown or a missing field, or a number that is out of its
    range is a ValueError that names it."""
    rest = dict(table)
    rounds = rest.pop("rounds", 1 if rest.get("mechanism") == "exact" else None)
    try:
        return Rounds(msgspec.convert(rest, AnyEvent), msgspec.convert(rounds, Count))
    except msgspec.ValidationError as error:
        raise ValueError(f"mechanism = {table.get('mechanism')!r}: {error}") from None

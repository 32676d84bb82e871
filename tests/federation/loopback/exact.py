"""When the ledgers of a federation are exact, although processes were killed and messages lost.

Two parties write what they know: a device pays before it releases, and a server before it asks. A
message that is lost leaves them with different knowledge, so some statements are equations and
others inclusions. These are the strongest that hold. Of one device:

    a round     is a reserve, then at most one of commit and refund; nothing else
    in order    rounds grow from each reserve to the next, over all runs: no round is paid twice,
                not even one that a killed server had begun and a resumed one played again
    open        is at most the last round of a run; every later reserve refunds what is open

Of the server: a client is reserved at most once in a round, resolved at most once and only after
that, and only in rounds that were planned. Between the two:

    reserved by the device  is within  reserved at the server   (the server pays before it asks)
    committed               is within  reserved and not refunded there: it never understates

And for every round that is in rounds.jsonl, of the clients that were asked in it:

    reserved, of those heard in the norm stage       =  answered + REPEATED, client by client
    committed, of those heard in the update stage    =  all of them: answered + REPEATED
    missing                                          =  those that devices.json names

Only of a client that is missing is it unknown whether it has paid: the inclusions say that the
server counts it as if it had. (An open reservation of a run whose server was killed is charged on
the device, and may be refunded at the server: there the device knows less, and pays more.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from locksfl.privacy.journal import Entry

WHOLE = (["reserve"], ["reserve", "commit"], ["reserve", "refund"])
MAYBE_SENT = ("REPEATED", "LEDGER")  # refusals after which something may have been released


@dataclass(frozen=True)
class Books:
    """What was written about one arm: by the server, by every device, and in the run folder."""

    planned: int
    server: Sequence[Entry]
    devices: Sequence[Sequence[Entry]]
    lines: Sequence[Mapping[str, Any]]  # rounds.jsonl
    missing: Sequence[Collection[int]]  # of every device: the rounds in which it was missing

    def reserved(self, device: int) -> set[int]:
        """The rounds that a device has paid for."""
        return {entry.round for entry in self.devices[device] if entry.kind == "reserve"}

    def committed(self, device: int) -> set[int]:
        """The rounds in which it has released an update."""
        return {entry.round for entry in self.devices[device] if entry.kind == "commit"}

    def at_server(self, kind: str, device: int) -> set[int]:
        """The rounds with an entry of this kind for a client."""
        return {e.round for e in self.server if e.kind == kind and device in e.clients}


def mismatches(books: Books) -> list[str]:
    """Every statement above that does not hold."""
    found = list(_of_server(books))
    for number, entries in enumerate(books.devices):
        told = [*_of_device(entries), *_understated(books, number)]
        found += [f"device {number}: {why}" for why in told]
    if [line["round"] for line in books.lines] != list(range(1, books.planned + 1)):
        found.append("rounds.jsonl does not have every round once")
    for line in books.lines:
        found += [f"round {line['round']}: {why}" for why in _of_round(books, line)]
    return found


def _of_device(entries: Sequence[Entry]) -> Iterator[str]:
    kinds: dict[tuple[str, int], list[str]] = defaultdict(list)
    for entry in entries:
        kinds[entry.account, entry.round].append(entry.kind)
    for (run, number), entered in kinds.items():
        if entered not in WHOLE:
            yield f"round {number} of run {run} has {entered}"
        later = any(r == run and n > number for r, n in kinds)
        if entered == ["reserve"] and later:
            yield f"round {number} of run {run} is open, and a later one is reserved"
    rounds = [entry.round for entry in entries if entry.kind == "reserve"]
    if any(b <= a for a, b in pairwise(rounds)):
        yield f"rounds are not reserved in order, each once: {rounds}"


def _of_server(books: Books) -> Iterator[str]:
    kinds: dict[tuple[int, int], list[str]] = defaultdict(list)
    for entry in books.server:
        for client in entry.clients:
            kinds[int(client), entry.round].append(entry.kind)
    for (client, number), entered in kinds.items():
        if entered not in WHOLE:
            yield f"server: round {number} of client {client} has {entered}"
        if not 1 <= number <= books.planned:
            yield f"server: client {client} was asked in round {number}, which was not planned"


def _understated(books: Books, number: int) -> Iterator[str]:
    asked = books.at_server("reserve", number)
    if unknown := books.reserved(number) - asked:
        yield f"paid for rounds {sorted(unknown)}, and the server has not"
    if less := books.committed(number) - (asked - books.at_server("refund", number)):
        yield f"released updates in rounds {sorted(less)}, and the server does not charge them"


def _of_round(books: Books, line: Mapping[str, Any]) -> Iterator[str]:
    """The last time that a round was played is the one in rounds.jsonl: whoever was asked before
    a kill is not asked again, and remains charged."""
    number, stages = line["round"], line["secret"]["stages"]
    norm, update = stages["norm"], stages["update"]
    entries = [entry for entry in books.server if entry.round == number]
    begun = max((i for i, e in enumerate(entries) if e.kind == "reserve"), default=0)
    asked = {int(client) for client in entries[begun].clients} if entries else set()
    commits = [entry for entry in entries[begun + 1 :] if entry.kind == "commit"]
    charged = {int(client) for entry in commits for client in entry.clients}
    refunded = {int(c) for e in entries[begun + 1 :] if e.kind == "refund" for c in e.clients}
    missing = {client for client in asked if number in books.missing[client]}
    if len(asked) != norm["asked"] or asked != charged | refunded:
        yield f"{norm['asked']} were asked; reserved: {asked}, resolved: {charged | refunded}"
    if len(missing) != norm["missing"] + update["missing"]:
        yield f"missing in devices.json: {missing}, in the line {stages}"
    # who was drawn has answered in the norm stage; who was missing in it was not drawn: refunded
    heard = charged | (refunded - missing)
    if len(heard) != norm["asked"] - norm["missing"]:
        yield f"heard in the norm stage: {heard}, in the line {norm}"
    paid = {client for client in heard if number in books.reserved(client)}
    if len(paid) != norm["answered"] + norm["refused"].get("REPEATED", 0):
        yield f"paid in the norm stage: {paid}, in the line {norm}"
    nothing = sum(n for code, n in update["refused"].items() if code not in MAYBE_SENT)
    if len(charged) != update["asked"] - nothing:
        yield f"charged for an update: {charged}, in the line {update}"
    sent = {client for client in charged - missing if number in books.committed(client)}
    if sent != charged - missing:
        yield f"updates of {charged - missing} arrived; committed on the device: {sent}"
    if len(sent) != update["answered"] + update["refused"].get("REPEATED", 0):
        yield f"released an update: {sent}, in the line {update}"
    if any(entry.uploaders != 1 for entry in commits):  # who else is in a sum depends on speed
        yield f"credit for the noise of others: {commits}"

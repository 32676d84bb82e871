"""A device that guards its own privacy: policy, ledger, noise, and the answers of a round.

Whatever a server asks, a device answers only through `Guard`. The following then holds for any
server and whatever it sends, in any order and any number of times:

* Everything that the device ever releases to any server is within the budget of its policy, as
  mu-GDP.
* A release is in the ledger, on disk, before its noise is drawn, and noted apart from the ledger:
  an old copy of the ledger is refused.
* One round of one run gets at most one norm and one update, each with noise drawn once.

No network and no JAX here: a device starts a new process for each message.

| file      | what                                                                     |
|-----------|--------------------------------------------------------------------------|
| terms.py  | what a server asks for in a round; the fixed codes of a refusal          |
| policy.py | what the owner of the device allows: a TOML file                         |
| answering.py | one answer: check, compute, clip, pay, add noise, send                |
| guard.py  | checks, debits, and only then adds noise                                 |
| ledger.py | every release of the device, for all runs and servers: one SQLite file   |
| witness.py | the ledger's last head, in memory and beside the key: no old copy passes    |
| update.py | the adapter for a user's own training code; the part of an update sent   |
| consent.py | the owner has withdrawn consent: nothing is released any more         |
| view.py   | what was spent and what is left, for the owner                           |
"""

from __future__ import annotations

from locksfl.federation.device.guard import Guard
from locksfl.federation.device.ledger import DeviceLedger
from locksfl.federation.device.policy import Policy
from locksfl.federation.device.terms import Refusal, Refused, RoundTerms
from locksfl.federation.device.witness import Witness

__all__ = ["DeviceLedger", "Guard", "Policy", "Refusal", "Refused", "RoundTerms", "Witness"]

"""The privacy statement of a run in words: one page for somebody who is no cryptographer."""

from __future__ import annotations

from typing import Any

from locksfl._text import epsilon_text
from locksfl.data.datasets import has_users
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import covered_text
from locksfl.methods import TRUSTS

MEANING = (
    "An epsilon bounds what anybody can learn about one unit, even about whether it took part: "
    "nothing that they see is more than e^epsilon times as likely with this unit's data as without "
    "them, up to a remainder of probability delta. At epsilon 1 that factor is 2.7, at 3 it is 20, "
    "at 8 it is 3,000: small is safe, and above 10 or so little is promised."
)
OBSERVERS = (
    "SERVER is whoever runs the training and sees every message. PUBLIC is everybody else, who "
    "sees the models and this bundle, all of it, with any knowledge and computers they like. "
    '"infinite" is no protection at all.'
)
RELATIONS = (
    "The relation says what an epsilon compares. zero-out: one client's contribution present or "
    "absent. replace: one client's data replaced by any other. The number of clients is public. "
    "Norm releases are charged in the same epsilon."
)
RESERVATIONS = {
    "filter": "filter: every client stops before it would exceed this budget, whatever is drawn.",
    "max_epsilon": "max_epsilon: an arm ended before a round would have exceeded it. The "
    "accountant alone decided that, from the settings and no data, so only the rounds played are "
    "charged.",
    "simulated": "simulated: a seed was given, so this is the epsilon that a run with secret "
    "randomness would have; this run itself protects nobody.",
    "tuned_without_privacy": "tuned_without_privacy: clip norm, step or rule were chosen by "
    "looking at runs on these data; that choice is not charged.",
}
OTHER_RUNS = (
    "**Other runs.** Every other model, statistic or run over the same people costs them more, and "
    "the epsilons add up. "
)
NOT_COVERED = (
    "**What is true of many.** A model may show that a habit goes with an illness; that holds for "
    "people who took no part, too. What is protected is what a unit's own data add.",
    "**The training itself.** Nobody checks what a client sends: a client that lies can spoil the "
    "model (poisoning), within the clip norm of its update, or, where clients add their own noise, "
    "beyond it. Privacy is no protection from that.",
)


def unit_text(config: Config) -> str:
    """What one unit of privacy is in this experiment, in a phrase."""
    data = config.data
    if config.engine is not None:
        return "one client: a device with all the records that it trains on"
    if data.cuts_people:
        return (
            f"NOT A PERSON but one made-up client: some records that split {data.split.kind!r} put "
            "together. A person's records may be in several clients, and their epsilons add up"
        )
    if has_users(data.name):
        return "one client with all its data: a user that the data name"
    return (
        f"one client with all its data: a group of records made by split {data.split.kind!r}, as "
        "the data do not say whose they are"
    )


def statement_text(public: dict[str, Any], config: Config) -> str:
    """The text of STATEMENT.md, of what `publish` writes to statement.json."""
    rounds = " or ".join(str(t) for t in sorted({arm["rounds"] for arm in public["arms"]}))
    lines = [f"# Privacy statement: {public['name']}", ""]
    if public["no_guarantee"]:
        claimed = max(arm["claimed_epsilon"] for arm in public["arms"])
        lines += [
            f"**NO GUARANTEE for the claimed epsilon of {claimed:.4g}** (accounting as printed in "
            "the paper: a trusted server's multiplier, added by each client, norms uncharged). "
            "The table below says what the releases cost.",
            "",
        ]
    lines += [
        TRUSTS[config.privacy.trust].statement,
        *_in_short(public),
        *_reservations(public),
        "",
        "## What is protected, and from whom",
        "",
        f"Unit of privacy: {public['unit']}. There are {config.data.clients} clients; each arm "
        f"took {rounds} rounds, and an independent coin decided for each client and round.",
        "",
        MEANING,
        "",
        OBSERVERS,
        "",
        *_table(public),
        "",
        RELATIONS,
        "",
        "## What is not protected",
        "",
        f"* {OTHER_RUNS}{covered_text(public['covers'])}",
        *(f"* {text}" for text in (*_about_the_data(public, config), *NOT_COVERED)),
    ]
    return "\n".join(lines) + "\n"


def _in_short(public: dict[str, Any]) -> list[str]:
    """The first number of the table that a reader should look for, for each observer."""
    costs = [c for c in public["all_arms_composed"] if c["relation"] == "zero-out"]
    told = ", ".join(f"{_epsilon(cost)} against {cost['observer']}" for cost in costs)
    delta = costs[0]["delta"]
    return ["", f"In short, all arms together: epsilon {told} (zero-out, delta {delta:g})."]


def _epsilon(cost: dict[str, Any]) -> str:
    return epsilon_text(cost["epsilon"], 3, "infinite")


def _reservations(public: dict[str, Any]) -> list[str]:
    ended = any(arm["rounds"] < arm["asked_rounds"] for arm in public["arms"])
    holds = {**public, "max_epsilon": ended}
    return [part for key, text in RESERVATIONS.items() if holds[key] for part in ("", text)]


def _table(public: dict[str, Any]) -> list[str]:
    rows = [
        "| arm | observer | relation | epsilon | delta | accountant |",
        "|---|---|---|---|---|---|",
    ]
    composed = {"name": "all arms together", "privacy": public["all_arms_composed"]}
    for arm in [*public["arms"], composed]:
        for cost in arm["privacy"]:
            cells = (arm["name"], cost["observer"], cost["relation"], _epsilon(cost))
            rows.append(f"| {' | '.join(cells)} | {cost['delta']:g} | {cost['accountant']} |")
    return rows


def _about_the_data(public: dict[str, Any], config: Config) -> list[str]:
    """What these data and their use leave open."""
    said = [_held_out(public["held_out"])]
    if config.engine is None and config.data.leaves_out_people:
        said.append(
            f"**The number of clients** is that of people with at least {config.data.min_samples} "
            "records; the others were left out. So it was counted in the data, and no epsilon "
            "covers what it reveals about the size of a person's data."
        )
    if config.engine is None and config.data.dealt_by_label:
        said.append(
            f"**The dealing.** Split {config.data.split.kind!r} gave records to clients by their "
            "labels. The epsilons take the clients as they were made; they do not cover what the "
            "dealing shows of a label."
        )
    if not public["classes_public"]:
        said.append(
            "**The number of classes** was counted in the data, held-out ones included, and shows "
            "in the size of the model. No epsilon covers that."
        )
    if not public["tuned_without_privacy"]:
        said.append(
            "**Tuning.** The experiment does not say that its settings were chosen by looking at "
            "runs on these data. If they were, that choice is a release, and it is not charged."
        )
    return said


def _held_out(held_out: dict[str, Any]) -> str:
    if held_out["public"]:
        return (
            "**Held-out records.** Accuracy and loss are measured on records that are declared "
            "public. No epsilon covers these."
        )
    count = held_out["clients"]
    who = "some people were" if count is None else "1 client was"
    if count is not None and count != 1:
        who = f"{count} clients were"
    return (
        f"**Held-out people.** To measure accuracy, {who} held out: their data are not in the "
        "training, and no epsilon covers them. So the figures on them (accuracy, loss) are "
        "withheld: they are nowhere in this bundle. Whatever was chosen by looking at these "
        "figures (when to stop, which arm or setting to publish) is a release about these people "
        "all the same, and it is not charged."
    )

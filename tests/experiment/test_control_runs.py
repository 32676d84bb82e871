"""Runs with control variates, by the commands: refused, resumed, published, and what they cost."""

from __future__ import annotations

import functools
import json
import tomllib

import pytest

from locksfl.experiment.config import LocalConfig, parse_config
from locksfl.federation.device.local_update import local_update
from locksfl.models.build import softmax
from small_runs import CENTRAL, call_locks, new_path, play, stopped_after, summary

COIN = '[[arm]]\nname = "coin"\nrule = "coin"\ncohort = 6\n'
TEXT = CENTRAL.replace('[[arm]]\nname = "uniform"\ncohort = 4\n', "") + COIN
ANCHOR = ("local.control=anchor", "local.anchor_every=2", "local.anchor_ratio=0.25")
EPOCHS = ("local.update=epochs", "local.batch=20", "local.min_samples=30")
SCAFFOLD = (*EPOCHS, "local.control=scaffold")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ["local.proximal=0.1"],
            "local.proximal = 0.1: local.update 'gradient' takes no proximal",
        ),
        ([*EPOCHS, "local.proximal=0"], "local.proximal = 0.0: expected a number > 0"),
        (
            ["local.anchor_every=3"],
            "local.anchor_every = 3: local.control None takes no anchor_every",
        ),
        (
            [*SCAFFOLD, "local.anchor_ratio=0.5"],
            "local.anchor_ratio = 0.5: local.control 'scaffold' takes no anchor_ratio",
        ),
        ([*ANCHOR, "local.anchor_every=0"], "local.anchor_every = 0: expected a whole number >= 1"),
        ([*ANCHOR, "local.anchor_ratio=1.5"], "local.anchor_ratio = 1.5: expected"),
        (["local.control=anchors"], "local.control = 'anchors': expected"),
        (
            [*EPOCHS, *ANCHOR],
            "local.control = 'anchor': only with local.update = 'gradient', not 'epochs'",
        ),
        (
            ["local.control=scaffold"],
            "local.control = 'scaffold': only with local.update = 'epochs', not 'gradient'",
        ),
        (
            [*SCAFFOLD, "local.min_samples=20"],
            "local.control = 'scaffold': every client must take the same number of local steps; "
            "expected local.min_samples and local.max_samples that fill as many batches of 20, not "
            "20 and 40",
        ),
        ([*SCAFFOLD, "local.proximal=1"], "local.control = 'scaffold': not with local.proximal"),
        ([*SCAFFOLD, "local.weight=size"], "local.control = 'scaffold': not with local.weight"),
        (
            [*ANCHOR, "train.clip_quantile=0.5"],
            "local.control = 'anchor': not with clip_quantile",
        ),
        ([*ANCHOR, "arm.locks.lengths=equal"], "local.control = 'anchor': not with lengths"),
        (
            [*ANCHOR, 'arm=[{name="a", sampling="cyclic", separation=3}]'],
            "local.control = 'anchor': not with bands = 3: correlated noise is charged in units of "
            "one clip norm, and its rounds have two; expected bands = 1 (arm 'a')",
        ),
        ([*SCAFFOLD, "engine=flower"], "local.control = 'scaffold': not with a federation"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(changes, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_config(CENTRAL, changes, 7)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_device_refuses_controls():
    work = LocalConfig(control="anchor").work()
    with pytest.raises(ValueError, match=r"^local.control = 'anchor': a device keeps nothing"):
        local_update(softmax(2, 2), work, [[0.0, 0.0]], [0], 1.0)


@pytest.fixture
def locks(monkeypatch, capsys, tmp_path):
    """`locks ...` in this process: what it printed."""
    (tmp_path / "experiment.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    return functools.partial(call_locks, capsys)


@pytest.mark.parametrize("changes", [ANCHOR, SCAFFOLD], ids=["anchor", "scaffold"])
def test_a_run_costs_what_it_costs_without_and_resumes(locks, changes):
    """The noise that is calibrated, the ledger and the claim are those of the same arms without
    control variates; a stopped run ends in the same files."""
    whole, again = new_path(), new_path()
    options = [option for change in changes for option in ("--set", change)]
    run = ("run", "experiment.toml", "--seed", "7", *options)
    locks(*run, "--out", whole)
    without = [change for change in changes if change not in ANCHOR and "control" not in change]
    plain = play(parse_config(TEXT, without, 7))
    paid = ("noise_multiplier", "norm_multiplier", "claimed_epsilon", "privacy")
    for one, other in zip(summary(whole)["arms"], summary(plain)["arms"], strict=True):
        assert {name: one[name] for name in paid} == {name: other[name] for name in paid}
        assert one["accuracy"] is not None
    mine, others = (
        json.loads(locks("privacy", "account", run, "--json")) for run in (whole, plain)
    )
    for one, other in zip(mine["arms"], others["arms"], strict=True):
        assert one["guarantee"] == other["guarantee"]

    with stopped_after(again, 7):  # in the middle of its second arm, between two anchors
        locks(*run, "--out", again, code=130)
    locks("run", "--resume", "--out", again)
    for name in ("rounds.jsonl", "model-locks.npz", "model-coin.npz"):
        assert (whole / name).read_bytes() == (again / name).read_bytes(), name
        if name.startswith("model"):
            assert (whole / name).read_bytes() != (plain / name).read_bytes(), name

    locks("publish", whole, "bundle")
    with open("bundle/config.toml", "rb") as told:
        assert f"local.control={tomllib.load(told)['local']['control']}" in changes

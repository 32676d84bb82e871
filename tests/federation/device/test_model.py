"""A server with another model: refused before anything is paid, and seen in the server's tally."""

from __future__ import annotations

import numpy as np
import pytest

from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.federation.device import DeviceLedger, Policy, Refusal, RoundTerms, Witness
from locksfl.federation.device.answering import Device
from locksfl.federation.device.files import DeviceFiles
from locksfl.federation.device.update import Declared
from locksfl.federation.server.engine import Federation
from locksfl.federation.wire import Question
from locksfl.models.build import softmax
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from memory_network import MemoryNetwork

SIZE = 21  # softmax of 6 features and 3 classes
POLICY = Policy(1.0, 20.0, 50, 1e4, 1e-5, min_norm_multiplier=30.0)
PLAN = Arm.of(
    "arm", rule="norm", trust="local", clients=4, rounds=2, cohort=4.0, uploads=2.0, clip_norm=1.0,
    step=0.1, floor=0.2, norm_low=0.6, noise_multiplier=60.0, norm_multiplier=80.0,
)  # fmt: skip
PLAIN = PLAN.changed(rule="uniform", uploads=4.0, floor=0.0, norm_low=None, norm_multiplier=0.0)


def device(folder, name, update):
    ledger = Witness(folder / f"{name}.sqlite", folder / f"{name}.key")
    ledger.create()
    return Device(update, POLICY, ledger)


def entries(folder, name):
    with DeviceLedger.open(folder / f"{name}.sqlite") as ledger:
        return len(ledger.entries())


def ones(weights, _round):
    return np.ones(weights.size)


def never(*_):
    raise AssertionError("trained for another model")


@pytest.mark.parametrize("plan", [PLAN, PLAIN], ids=["norm", "uniform"])
def test_devices_with_another_model_refuse_unpaid_and_the_server_sees_it(tmp_path, plan):
    """One of another size, one of another name, one of the server's, one that declares nothing."""
    updates = [
        Declared(never, SIZE + 1, "softmax"),
        Declared(never, SIZE, "mlp"),
        Declared(ones, SIZE, "softmax"),
        ones,
    ]
    devices = {i: device(tmp_path, i, update) for i, update in enumerate(updates)}
    federation = Federation(
        ragged(np.full(4, 4)), softmax(6, 3), MemoryNetwork(devices), [plan],
        folder=tmp_path, experiment="x", privacy=PrivacyConfig(trust="local"), seconds=1.0,
    )  # fmt: skip
    blocks = federation.play(plan, None, Server(rounds=2), Randomness.seeded(0))
    rounds = [log for block in blocks for log in block.rounds]
    first = "norm" if plan.releases_norms else "update"
    for log in rounds:
        assert log.stages[first]["refused"] == {"MODEL": 2}
        assert log.stages[first]["answered"] == 2
    assert [entries(tmp_path, i) > 0 for i in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("size", "name", "refused"),
    [(6, "softmax", False), (6, None, False), (7, "softmax", True), (6, "mlp", True)],
)
def test_what_is_told_is_compared(tmp_path, size, name, refused):
    terms = RoundTerms("one", 1, False, 1.0, 20.0)
    question = Question(
        "update", terms.as_dict(), np.zeros(size, np.float32), "capped", 1.0, 1.0, model=name
    )
    mine = device(tmp_path, "mine", Declared(ones, 6, "softmax"))
    answer = mine("one", question, {})
    assert (answer.refusal == Refusal.MODEL) is refused
    assert (entries(tmp_path, "mine") == 0) is refused


@pytest.mark.parametrize("parameters", [None, 0, 2.5, True])
def test_a_training_function_says_the_size_of_its_model(tmp_path, monkeypatch, parameters):
    (tmp_path / "mine.py").write_text(
        "def update(weights, _):\n    return weights\n"
        + ("" if parameters is None else f"update.parameters = {parameters}\n")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    policy = tmp_path / "policy.toml"
    policy.write_text(
        "epsilon = 8.0\ndelta = 1e-5\nmax_clip_norm = 1.0\nmin_noise_multiplier = 1.0\n"
        "max_rounds = 9\n"
    )
    files = DeviceFiles(policy, tmp_path / "l.sqlite", tmp_path / "a.key", update="mine:update")
    with pytest.raises(ValueError, match=r"expected update\.parameters = N") as caught:
        files.begin(new_ledger=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "l.sqlite").exists()

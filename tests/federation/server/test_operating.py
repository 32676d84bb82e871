"""What an operator sees: the status of every device, the log, and the policy that is needed."""

from __future__ import annotations

import http.client
import json
import logging
import stat
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")
from typer.testing import CliRunner

from locksfl.cli.main import app
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.record import Line, PublicRound, Releases, Scores, SecretRound, Tally
from locksfl.federation import logs
from locksfl.federation.demo import experiment_text
from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused
from locksfl.federation.server.allowed import policy_for, policy_text, terms_line
from locksfl.federation.server.devices import (
    DEVICES,
    Watched,
    _new,
    device_cells,
    metrics,
    status,
)
from locksfl.federation.server.page import page, page_server
from locksfl.federation.server.rounds import round_terms
from locksfl.federation.server.serving import _wait_for, as_federation, round_line
from locksfl.federation.telling import told_of
from locksfl.federation.wire import Answer, Question
from memory_network import MemoryNetwork

CONFIG = as_federation(parse_config(experiment_text(4, 3, "local", 8.0)))
GOOD, BAD = Answer(released=np.zeros(1)), Answer()


class Scripted(MemoryNetwork):
    """Answers what the test says; who is not named is missing."""

    def ask(self, questions, seconds, round_number):
        del seconds, round_number
        return {i: a for i, a in self.script.pop(0).items() if i in questions}


def watched(folder, script, seen=dict, gone=dict):
    network = Scripted({})
    network.script = script
    return Watched(network, ["alice", "bob", "carol"], folder.path, 60.0, seen, gone)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", CONFIG)
    made.clear()
    (made.path / "flower").mkdir()
    return made


def test_status_tells_what_became_of_every_question(folder):
    assert status(folder)["devices"] == []
    refused = Answer(refusal=int(Refusal.BUDGET))
    told = replace(GOOD, rounds_left=17)
    script = [{0: GOOD, 1: refused}, {0: BAD, 1: refused}, {0: told, 2: GOOD}, {0: GOOD}, {}]
    network = watched(folder, script, lambda: {1: time.time()})
    questions = dict.fromkeys(range(3), Question("norm", {}))
    for number in range(1, 4):
        network.ask(questions, 60.0, number)
    # a server that is resumed goes on counting; nobody waits for the answer to an end
    resumed = watched(folder, network._network.script)
    resumed.ask(questions, 60.0, 5)
    resumed.ask(dict.fromkeys(range(3), Question("end", {})), 60.0, 6)
    told = status(folder)
    alice, bob, carol = told["devices"]
    assert (alice["answered"], alice["errors"], alice["missing"]) == (3, 1, [])
    assert (alice["rounds_left"], bob["rounds_left"]) == (17, None)  # only who tells
    assert alice["last_answer"].items() >= {"round": 5, "stage": "norm"}.items()
    assert (bob["refused"], bob["missing"]) == ({"BUDGET": 2}, [[3, 3], [5, 5]])
    assert bob["last_seen"].startswith("1970-01-01T00:00:")
    assert carol["missing"] == [[1, 2], [5, 5]]
    assert told["state"] == "stopped"
    assert told["seconds"] == 60.0
    assert told["rounds"] == {"uniform": [0, 3], "locks": [0, 3]}
    with folder.held():
        assert status(folder)["state"] == "running"
    shown = CliRunner().invoke(app, ["federation", "status", str(folder.path)]).output
    assert "carol" in shown
    assert "1-2, 5" in shown
    assert "BUDGET 2" in shown
    told_json = CliRunner().invoke(app, ["federation", "status", str(folder.path), "--json"]).output
    assert json.loads(told_json)["devices"] == told["devices"]
    printed = CliRunner().invoke(app, ["federation", "status", str(folder.path), "--prometheus"])
    found = [line.rpartition(" ") for line in printed.output.splitlines()]
    values = {name.replace(f'run="{folder.path}"', "run"): value for name, _, value in found}
    assert values['locks_device_refused{run,device="bob",code="BUDGET"}'] == "2"
    assert values['locks_device_missing_rounds{run,device="carol"}'] == "3"
    assert values['locks_device_rounds_left{run,device="alice"}'] == "17"
    assert 'locks_device_rounds_left{run,device="carol"}' not in values
    assert 0 <= int(values['locks_device_last_seen_seconds{run,device="bob"}']) < 60
    assert values['locks_rounds_planned{run,arm="locks"}'] == "3"
    with page_server(folder.path, 0) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        port = pages.server_address[1]
        assert fetched(port, "/metrics") == (200, printed.output)
        code, text = fetched(port, "/")
        assert code == 200
        assert "<td>carol</td>" in text
        assert "1-2, 5" in text
        assert fetched(port, "/config.toml")[0] == 404
        assert fetched(port, "/", host=f"evil.example:{port}")[0] == 403
        with pytest.raises(ValueError, match=f"--port {port}"):
            page_server(folder.path, port)
        pages.shutdown()


def test_status_tells_who_has_left_or_was_revoked(folder):
    gone = {1: "left", 2: "revoked"}
    network = watched(folder, [{0: GOOD}, {0: GOOD}], lambda: {1: time.time() - 1}, lambda: gone)
    network.ask({0: Question("norm", {})}, 60.0, 1)
    told = status(folder)
    assert [device["gone"] for device in told["devices"]] == [None, "left", "revoked"]
    cells = [device_cells(device)[1] for device in told["devices"]]
    assert [cells[0], cells[1][:17] + cells[1][20:], cells[2]] == [
        *("never", "1970-01-01T00:00:, left", "never, revoked")
    ]
    values = [line.split('device="')[-1] for line in metrics(told).splitlines() if "_left{" in line]
    assert values == ['alice"} 0', 'bob"} 1', 'carol"} 0']
    assert f'locks_device_revoked{{run="{folder.path}",device="carol"}} 1' in metrics(told)
    del gone[1]  # the operator took it back
    network.ask({0: Question("norm", {})}, 60.0, 2)
    assert status(folder)["devices"][1]["gone"] is None


def fetched(port, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_names_are_text_on_the_page():
    device = _new("<script>alert(1)</script>")
    told = {"run": "<b>", "state": "running", "rounds": {}, "time": None, "devices": [device]}
    assert "<script>" not in page(told)
    assert "<b>" not in page(told)


def test_nobody_else_can_read_it(folder):
    watched(folder, [{}]).ask({0: Question("norm", {})}, 60.0, 1)
    assert stat.S_IMODE((folder.path / DEVICES).stat().st_mode) == 0o600


def test_status_of_something_else_is_one_line(tmp_path):
    simulated = RunFolder.create(tmp_path / "run", replace(CONFIG, engine=None))
    for path, said in ((tmp_path, "not a run folder"), (simulated.path, "not a federation's run")):
        result = CliRunner().invoke(app, ["federation", "status", str(path)])
        assert result.exit_code == 2
        assert said in result.stderr


@pytest.mark.parametrize("trust", ["local", "central"])
def test_the_policy_allows_the_experiment_once_and_nothing_more(tmp_path, trust):
    config = as_federation(parse_config(experiment_text(4, 3, trust, 8.0)))
    plans = plan_arms(config)
    path = tmp_path / "policy.toml"
    path.write_text(policy_text(config, plans))
    policy = Policy.read(path)
    DeviceLedger.create(tmp_path / "ledger.db").close()
    number, asked = 0, None
    with Guard.open(policy, tmp_path / "ledger.db") as guard:
        for plan in plans:
            for _ in range(plan.rounds):
                number += 1
                asked = round_terms(plan, "run", number, config.privacy.relation)
                if asked.asks_norms:
                    guard.release_norm(asked, 0.5)
                guard.check(asked, "update")
                guard.release_update(asked, np.zeros(3), asked.clip_norm)
        assert number == 6
        for change, code in (
            ({"clip_norm": asked.clip_norm * 1.0001}, Refusal.CLIP),
            ({"noise_multiplier": policy.min_noise_multiplier * 0.9999}, Refusal.NOISE),
            ({"trust": {"local": "central", "central": "local"}[trust]}, Refusal.TRUST),
            ({"relation": "replace"}, Refusal.RELATION),
        ):
            assert policy.refusal(replace(asked, **change)) == code
        with pytest.raises(Refused) as one_more:
            guard.release_norm(replace(asked, round=7), 0.5)
        assert one_more.value.code == Refusal.BUDGET


def test_the_policy_as_a_command(tmp_path):
    experiment, out = tmp_path / "e.toml", tmp_path / "policy.toml"
    experiment.write_text(experiment_text(4, 3, "local", 8.0))
    printed = CliRunner().invoke(app, ["federation", "policy", str(experiment)])
    assert printed.exit_code == 0
    command = ["federation", "policy", str(experiment), "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert out.read_text() == printed.output
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    line = terms_line(policy_for(CONFIG, plan_arms(CONFIG)))
    for name in (
        "min_noise_multiplier <=",
        "max_clip_norm >= 1.0",
        "max_rounds >= 6",
        "epsilon >=",
    ):
        assert name in line


def test_logs_are_lines_with_a_time_and_a_level(tmp_path):
    for form in logs.FORMATS:
        with logs.logging_to(form, tmp_path / form):
            logs.say("two\nlines", round=3)
            logging.getLogger("locksfl.federation.device.node").warning("beside it")
    logs.say("nobody listens")
    first, second = (tmp_path / "text").read_text().splitlines()
    assert first.endswith("Z INFO two lines")
    assert second.endswith("Z WARNING beside it")
    line = json.loads((tmp_path / "json").read_text().splitlines()[0])
    assert line.pop("time").endswith("Z")
    assert line == {"level": "INFO", "message": "two lines", "round": 3}
    with pytest.raises(ValueError, match="--log-format"), logs.logging_to("yaml"):
        pass


def test_a_round_is_one_line_on_the_server_and_on_the_device(caplog):
    tally = Tally(asked=4, answered=2, refused={"NOISE": 1}, rejected=0, missing=1)
    record = Line(
        arm="locks",
        round=3,
        public=PublicRound(epsilon=1.0, expected_cohort=4.0, upload_estimate=2.0),
        secret=SecretRound(
            released=Releases(), scores=Scores(score=0.5, loss=None), stages={"update": tally}
        ),
    )
    said = "round 3 of 9 of locks: update 2 of 4 answered, 1 refused NOISE, 1 missing; score 0.500"
    assert round_line(record, 9) == said
    caplog.set_level(logging.INFO, "locksfl.federation")
    answers = [GOOD, Answer(refusal=6), Answer(refusal=99)]
    device = told_of(lambda run, question, kept: answers.pop(0))
    for terms in ({"round": 3}, {"round": 4}, {"round": "5\n" * 1000}):
        device("run", Question("update", terms), {})
    assert [record.getMessage() for record in caplog.records] == [
        "run run, round 3, update: answered",
        "run run, round 4, update: refused BUDGET",
        "run run, round None, update: refused UNKNOWN",
    ]


def test_no_run_begins_with_nobody(caplog):
    with pytest.raises(ValueError, match=r"--wait 0: none of 3 devices has called; expected at"):
        _wait_for(3, list, 0.0, lambda told: None)
    with caplog.at_level(logging.WARNING, logger=logs.log.name):
        _wait_for(3, lambda: [1, 2], 0.0, lambda told: None)
    assert "1 of 3 devices have not called: the run begins without them" in caplog.text


def test_many_missing_rounds_are_counted_and_the_last_are_shown():
    device = _new("alice") | {"missing": [[1, 1], [3, 5], [7, 7], [9, 9]]}
    assert device_cells(device)[-1] == "6 in all, ..., 3-5, 7, 9"
    assert device_cells(device | {"missing": [[1, 1], [3, 5]]})[-1] == "1, 3-5"

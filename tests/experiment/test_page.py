"""The words of the pages: what each must say, and what the public one must not."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from msgspec import structs

from locksfl.experiment.config import config_of
from locksfl.experiment.coverage import covered
from locksfl.experiment.documents import ELEMENT, read_document, read_statement
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.page import ServerFacts, server
from locksfl.experiment.page import public_page as page_of
from locksfl.experiment.page import server_page as page_of_server
from locksfl.experiment.page.story import of_public, of_run
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Statement, plain, read
from locksfl.experiment.sealing import sealed
from locksfl.experiment.statement import _credited, _who_was_asked
from locksfl.methods import RULES
from locksfl.privacy.population import PopulationJournal, Total
from made_documents import SETTINGS, made_run
from small_runs import (
    QUICK,
    call_locks,
    copied,
    finished,
    imported,
    lines,
    new_path,
    over,
    parse_config,
    play,
    quick,
    run_experiment,
)


def document_of(run):
    return plain(sealed(covered(RunFolder.open(run).run())))


def server_page(folder):
    return page_of_server(of_run(folder.run(), folder.config), ServerFacts.read(folder))


def rewrite(run, change):
    """A finished run with another summary.json."""
    told = json.loads((run / "summary.json").read_text("utf-8"))
    change(told)
    (run / "summary.json").write_text(json.dumps(told), "utf-8")


def public_page(document):
    """The page of a document."""
    return page_of(read(Statement, document))


def element(page):
    found = re.findall(
        f'<script type="application/json" id="{ELEMENT}">(.*?)</script>', page, re.DOTALL
    )
    assert len(found) == 1
    assert page.count(ELEMENT) == 1
    return found[0]


DRAW = """
import json, sys
import locksfl.cli.main, locksfl.experiment.run
from locksfl.experiment.page import public_page
from locksfl.experiment.record import Statement, read
assert "jinja2" not in sys.modules  # it is imported only to draw
statement = read(Statement, json.load(open(sys.argv[1])))
sys.stdout.buffer.write(public_page(statement).encode())
"""


def test_the_public_page_is_a_function_of_its_document(tmp_path):
    """The same bytes in another process, and after other figures."""
    document = document_of(finished())
    first = public_page(document)
    server_page(RunFolder.open(finished()))
    assert public_page(document) == first
    assert json.loads(element(first)) == document
    (tmp_path / "document.json").write_text(json.dumps(document))
    command = [sys.executable, "-c", DRAW, tmp_path / "document.json"]
    told = subprocess.run(command, capture_output=True, check=True)
    assert told.stdout.decode() == first
    # and of nothing less
    document["arms"][0]["rounds"][0]["upload_estimate"] += 1
    assert public_page(document) != first


def test_the_page_of_a_bundle_can_be_made_from_its_files():
    target = new_path()
    publish_folder(finished(), target)
    page = (target / "report.html").read_text("utf-8")
    document = json.loads(element(page))
    assert public_page(read_document(target)) == page
    del document["arms"][0]["privacy"]
    with pytest.raises(ValueError, match=r"missing required field `privacy`"):
        public_page(document)


SEED, SCORE = 918273645, 0.918273


def test_no_planted_secret_is_in_the_public_page():
    """Marked texts are planted in test_publish; these are numbers, over people who are held out."""
    run = copied(play(over(imported())))
    before = public_page(document_of(run))
    text = (run / "config.toml").read_text("utf-8")
    assert "seed = 3\n" in text
    (run / "config.toml").write_text(text.replace("seed = 3\n", f"seed = {SEED}\n"), "utf-8")

    def plant(told):
        for arm in told["secret"]["arms"]:
            arm |= {"seconds": SCORE, "compile_seconds": SCORE}
            arm["metrics"] = {k: v if k == "task" else SCORE for k, v in arm["metrics"].items()}
            for one in arm["rounds"]:
                one["scores"] = {"score": SCORE, "loss": SCORE}
                one["counts"] = {"cohort": SEED, "uploads": SEED}

    rewrite(run, plant)
    seen = [
        line | {"clipped_fraction": SCORE, "signal_to_noise": SCORE}
        for line in lines(run, "diagnostics.jsonl")
    ]
    (run / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen))
    page = public_page(document_of(run))
    assert page == before
    assert "Accuracy is withheld" in page
    marks = (str(SEED), f"{4 * SEED:,}", str(SCORE), "0.918")
    assert not any(mark in page for mark in marks)
    own = server_page(RunFolder.open(run))  # the test can fail
    assert all(mark in own for mark in marks)
    assert "Not a release" in own


def test_the_statement_comes_first_and_leaves_nothing_out():
    page = public_page(document_of(finished()))
    order = (
        "THIS RUN PROTECTS NOBODY", "Against the public", "Against the server", "no protection",
        "Who learns what", "What is promised", "1 / clients", "What is not promised",
        "Held-out records", "Manipulation", "How good the models are", "Who was asked",
        "What the budget was", "Configuration", "To play it again", "locks run config.toml",
    )  # fmt: skip
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    assert "do not pass it on" not in page
    assert "ε PUBLIC" in page


def test_the_words_are_those_of_the_statement():
    target = new_path()
    publish_folder(finished(), target)
    said = (target / "STATEMENT.md").read_text("utf-8")
    told = vars(of_public(read_statement(target)).words)
    every = [one for part in told.values() for one in ([part] if isinstance(part, str) else part)]
    sees = {*told["sees"]}
    assert [one for one in every if one not in said and one not in sees] == []


def said_of(kind):
    """The words of a made run, with their page."""
    run = covered(RunFolder.open(made_run(kind)).run())
    return of_public(run).words, page_of(sealed(run))


def test_turns_are_not_called_a_secret():
    secret, group = "known to the server only", "numbers of a whole group"
    told, page = said_of("turns")
    assert "a public schedule of who is asked" in told.sees["PUBLIC"]
    assert "not who took part" not in page
    assert secret not in page
    assert group in page
    told, page = said_of("turns beside coins")
    assert "who is asked (arm a); not who took part in other" in told.sees["PUBLIC"]
    assert secret in page
    assert group in page
    told, page = said_of("uniform")
    assert "not who took part" in told.sees["PUBLIC"]
    assert "schedule" not in told.sees["PUBLIC"]
    assert group not in page


DRAWN = "an independent random draw for every client decided whether it was asked"
ASKED = {
    "full": "in each, every client was asked.",
    "dpis": "in each, every client was asked.",
    "local, everybody": "in each, every client was asked.",
    "norm": f"in each, {DRAWN}.",
    "turns": "in each, a public schedule decided which clients were asked.",
    "turns beside coins": "in each, a public schedule decided which clients were asked (arm a); "
    f"{DRAWN} (arm b).",
    "rate control beside coins": f"in each, {DRAWN}.",
    "local, filter": f"in each, {DRAWN}.".replace("client", "client whose budget allowed it"),
}


@pytest.mark.parametrize("kind", ASKED)
def test_the_statement_says_how_clients_were_asked(kind):
    """Found alone here: of rule `full` a draw was told of, and a secret that everybody knows."""
    told, page = said_of(kind)
    assert told.scope.endswith(ASKED[kind])
    if kind in ("full", "dpis"):
        assert told.sees["PUBLIC"].endswith("with noise, and that every client is asked")
    secret = kind not in ("full", "turns") and "local" not in kind
    assert ("is known to the server only" in page) == secret


def test_every_rule_at_every_rate_says_whether_all_are_asked():
    for name, rule in RULES.items():
        for cohort in (30, 60):
            arm = {"name": "arm", "rule": name}
            arm |= {} if rule.all_clients else {"cohort": cohort}
            arm |= {"weights": [1 / 60] * 60} if "weights" in rule.takes else {}
            config = config_of({**SETTINGS, "privacy": {"trust": "none"}, "arm": [arm]})
            everybody = cohort == 60 or rule.all_clients
            assert ("every client was asked" in _who_was_asked(config)) == everybody, name
            assert ("random draw" in _who_was_asked(config)) == (not everybody), name


def test_a_credit_for_the_noise_of_others_names_its_conditions():
    told, page = said_of("local, everybody")
    assert any(text.startswith("aggregation credit") for text in told.reservations)
    assert "the conditions of the aggregation credit are met." in told.meaning[1]
    assert "counted as seeing only sums" in told.sees["PUBLIC"]
    assert "what they sent" in page
    for kind in ("local", "local, two arms", "local, filter", "full", "none"):
        told, page = said_of(kind)
        assert "aggregation credit" not in page
        assert told.meaning[1].endswith("cryptographic random numbers.")
    # what was spent is quoted of an arm that ended early, and may be credited though no promise is
    run = RunFolder.open(made_run("local")).run().public
    assert not _credited(run)
    (arm,) = run.arms
    spent = tuple(
        structs.replace(c, epsilon=c.epsilon / (1 + (c.observer == "PUBLIC"))) for c in arm.privacy
    )
    whole = structs.replace(arm, spent_so_far=spent)
    assert not _credited(structs.replace(run, arms=(whole,)))
    early = structs.replace(whole, rounds=whole.rounds[:-1])
    assert _credited(structs.replace(run, arms=(early,)))


def test_the_epsilon_that_is_explained_is_the_one_asked_for():
    """Not the most favourable: of the experiment's relation, against whom its trust protects."""
    for kind, mine in (
        ("uniform", "(PUBLIC, zero-out)"),
        ("uniform by rdp, replace", "(PUBLIC, replace)"),
        ("local, everybody", "(SERVER, zero-out)"),
    ):
        assert mine in said_of(kind)[0].factor
    assert said_of("none")[0].factor == ""


def test_a_page_says_why_it_has_no_score():
    document = document_of(made_run("uniform"))
    for line in document["arms"][0]["rounds"]:
        del line["scores"]
    assert "No round has a score" in public_page(document)
    assert "Accuracy is withheld" not in public_page(document)
    document["held_out"] = {"public": False, "clients": 1}
    assert "Accuracy is withheld" in public_page(document)


def test_without_noise_the_server_s_counts_are_exact():
    own, estimated = server_page(RunFolder.open(made_run("none"))), "estimated from what"
    assert "these counts of the server are exact" in own
    assert estimated not in own
    assert estimated in said_of("none")[1]
    assert estimated in server_page(RunFolder.open(made_run("uniform")))


def test_how_to_play_it_again_depends_on_who_played():
    document = document_of(made_run("local"))
    for engine, command in (
        (None, "locks run config.toml<"),
        ("flower", "locks federation server config.toml<"),
        ("flower-simulation", "locks federation demo --engine flower-simulation<"),
    ):
        named = {"engine": engine} if engine else {}
        page = public_page(document | {"settings": document["settings"] | named})
        assert command in page
        assert "set data.name" not in page
    data = {**document["settings"]["data"], "name": "own-data"}
    page = public_page(document | {"settings": document["settings"] | {"data": data}})
    assert "set data.name to their folder" in page


def test_a_large_delta_is_warned_of():
    warned = "delta = 0.1 is not below 1 / clients = 0.0833333"
    document = document_of(quick())
    assert "is not below" not in public_page(document)
    document["settings"]["privacy"]["delta"] = 0.1
    assert warned in public_page(document)
    run = copied(quick())
    text = (run / "config.toml").read_text("utf-8")
    assert "delta = 1e-05\n" in text
    (run / "config.toml").write_text(text.replace("delta = 1e-05\n", "delta = 0.1\n"), "utf-8")
    assert warned in server_page(RunFolder.open(run))


def test_the_server_s_page_says_what_it_knows_and_what_not():
    told = (finished() / "report.html").read_text("utf-8")
    for part in (
        "do not pass it on", "locks publish", "The ledger has", "signal to noise", "share clipped",
        "Environment", "jaxlib", "locks run config.toml --out again", "config.toml has the seed",
    ):  # fmt: skip
        assert part in told
    assert ELEMENT not in told
    secret = (quick(seed=None) / "report.html").read_text("utf-8")
    assert "tells its own files nothing that was not released" in secret
    assert "share clipped" not in secret
    assert "sum of norms, with noise" in secret
    assert "the random numbers are gone" in secret
    assert "THIS RUN PROTECTS NOBODY" not in secret
    local = (finished("local") / "report.html").read_text("utf-8")
    assert "these counts are exact" in local
    none = (finished("none") / "report.html").read_text("utf-8")
    assert none.count("no protection") >= 2
    assert "Nothing was spent that could be counted" in none


def test_a_page_of_a_long_run_is_below_200_kilobytes():
    """100 rounds of two arms, as the embedded run has; lines are thinned, not cut."""
    run = copied(finished())
    seen = [line for line in lines(run, "diagnostics.jsonl") if "arm" in line]
    more = [line | {"round": line["round"] + 4 * n} for n in range(25) for line in seen]
    more.sort(key=lambda line: (line["arm"], line["round"]))
    (run / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in more))

    def longer(told):
        for half in ("public", "secret"):
            for arm in told[half]["arms"]:
                arm["rounds"] *= 25

    rewrite(run, longer)
    assert len(server_page(RunFolder.open(run)).encode()) < 2e5
    assert len(public_page(document_of(run)).encode()) < 2e5


def test_a_page_that_cannot_be_drawn_loses_no_run(monkeypatch):
    def broken(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(server, "render", broken)
    config = parse_config(QUICK, (), 3)
    folder = RunFolder.create(new_path(), config)
    with pytest.warns(RuntimeWarning, match=r"report.html was not written .*no ink.*locks report"):
        run_experiment(config, folder)
    assert folder.finished
    assert not (folder.path / "report.html").exists()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        story = of_run(folder.run(), config)
        server.draw_page(folder.path, story, ServerFacts.read(folder))
    assert (folder.path / "report.html").is_file()


def test_the_journal_of_a_population_has_its_budget_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path))
    total = Total(epsilon=2000.0, delta=1e-5, relation="zero-out", order=1.5)
    PopulationJournal.make("clinic", total).close()
    run = play(parse_config(QUICK, ["privacy.population=clinic"]))
    told = (run / "report.html").read_text("utf-8")
    assert "The journal of population <strong>clinic</strong> allows" in told
    assert "the total (100)" in told
    (tmp_path / "clinic.sqlite").rename(tmp_path / "elsewhere")
    assert "could not be read" in server_page(RunFolder.open(run))


def test_report_writes_pages_of_one_run_and_of_several(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, bundle = copied(finished()), tmp_path / "bundle"
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert call_locks(capsys, "report", run) == f"wrote {run}/report.html\n"
    assert (run / "report.html").read_bytes() == before
    publish_folder(run, bundle)
    call_locks(capsys, "report", run, "--public", "--out", "mine.html")
    assert Path("mine.html").read_bytes() == (bundle / "report.html").read_bytes()

    assert call_locks(capsys, "report", run, quick()) == "wrote report.html\n"
    told = Path("report.html").read_text("utf-8")
    for part in ("do not pass it on", "Not at equal epsilon", "What differs", "arm.locks.uploads"):
        assert part in told
    call_locks(capsys, "report", run, bundle, "--public", "--out", "both.html")
    told = Path("both.html").read_text("utf-8")
    assert "do not pass it on" not in told
    assert "Not at equal" not in told
    assert "Their configurations are the same" in told
    assert "small (1)" in told
    assert "small (2)" in told


def test_a_public_page_of_several_runs_names_no_folder(tmp_path, capsys, monkeypatch):
    """A folder's name has the time of the run, if nobody chose another."""
    monkeypatch.chdir(tmp_path)
    first, second = tmp_path / "night-first", tmp_path / "night-second"
    shutil.copytree(quick(), first)
    shutil.copytree(finished(), second)
    call_locks(capsys, "report", first, second, "--public", "--out", "public.html")
    told = Path("public.html").read_text("utf-8")
    assert "quick · small" in told
    assert "night-" not in told
    call_locks(capsys, "report", first, second, "--out", "own.html")  # the test can fail
    assert "night-first · night-second" in Path("own.html").read_text("utf-8")


def test_report_refuses_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    publish_folder(quick(), tmp_path / "bundle")
    (tmp_path / "there.html").write_text("mine")
    for given, told in (
        (("bundle",), "bundle: a public bundle stays as it is; expected --out FILE"),
        ((quick(), "--public"), "is the server's own; expected --out FILE"),
        ((quick(), "--out", "there.html"), "--out there.html: already exists"),
        (("nowhere",), "nowhere: not a run folder"),
    ):
        capsys.readouterr()
        with pytest.raises(AssertionError, match=re.escape(told)):  # its code is not 0
            call_locks(capsys, "report", *given)
    (tmp_path / "bundle" / "statement.json").write_text("{")
    with pytest.raises(AssertionError, match="not valid JSON"):
        call_locks(capsys, "report", "bundle", "--out", "new.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "there.html"]


def test_a_page_with_secrets_is_for_its_owner_alone(tmp_path, capsys):
    """The fault: `locks report RUN --out FILE` copies the server's page where all can read it."""
    publish_folder(quick(), tmp_path / "bundle")
    before = os.umask(0o022)
    try:
        for given in ((quick(),), (quick(), tmp_path / "bundle")):
            call_locks(capsys, "report", *given, "--out", tmp_path / f"secret-{len(given)}.html")
        call_locks(capsys, "report", quick(), "--public", "--out", tmp_path / "public.html")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.html")}
    assert modes == {"secret-1.html": 0o600, "secret-2.html": 0o600, "public.html": 0o644}

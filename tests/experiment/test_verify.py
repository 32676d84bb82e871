"""`locks verify` believes no page: what was changed is found, and by what."""

from __future__ import annotations

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jsonschema import Draft202012Validator

from changed_records import ABSENT, changed, changes
from locksfl.experiment.page.sheet import in_script
from locksfl.experiment.page.sheet import public_page as page_of
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Statement, plain, read, schema
from locksfl.experiment.sealing import sealed as sealed_run
from locksfl.experiment.verify import read_document, run_faults, statement_of, verify
from locksfl.experiment.verify.epsilons import agreed
from locksfl.privacy.recompute import Recomputed
from made_documents import KINDS, made_bundle, made_run, page
from small_runs import call_locks, new_path

ROOT = Path(__file__).parents[2]
OLD = Path(__file__).parents[1] / "old" / "bundle"
PEM = serialization.Encoding.PEM
BY = {
    "coin, rate control": {"dp_accounting rdp"},
    "dpis": {"dp_accounting rdp"},
    "uniform by rdp, replace": {"dp_accounting rdp"},
    "norm": {"locks pld"},
    "adaptive clipping, norm": {"locks pld"},
    "norm by rdp": {"locks rdp"},
    "two arms": {"dp_accounting pld", "locks pld"},
    "turns": {"dp_accounting gaussian"},
    "turns beside coins": {"dp_accounting gaussian", "dp_accounting pld"},
    "rate control beside coins": {"dp_accounting rdp", "dp_accounting pld", "locks rdp"},
    "none": set(),
}


def public_page(document):
    """The page of a document."""
    return page_of(read(Statement, document))


def sealed(document):
    """A document that a forger has sealed anew."""
    return plain(sealed_run(read(Statement, document)))


def write_page(document):
    """The page of a document, as it is drawn here."""
    return written(public_page(document))


def written(text):
    path = new_path().with_suffix(".html")
    path.write_text(text, "utf-8")
    return path


def forged_faults(document):
    """The faults that are found although a forger has made the seals anew."""
    run, faults = statement_of(document)
    return faults if run is None else run_faults(run)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_arm_holds_and_the_accountant_is_named(kind):
    report = verify(made_bundle(kind))
    assert report.faults == []
    local = {"dp_accounting gaussian"} if "local" in kind or kind == "as printed" else None
    by = {row.by.split(" (")[0] for row in report.rows if row.found.by != "none"}
    assert by == (local or BY.get(kind, {"dp_accounting pld"}))
    document = read_document(made_bundle(kind))
    assert forged_faults(json.loads(json.dumps(document))) == []


def test_the_command_and_its_answers(capsys):
    """tests/experiment/test_publish.py has bundles of runs that were trained."""
    folder = made_bundle("two arms")
    told = call_locks(capsys, "verify", folder)
    assert "holds: 12 epsilons follow from the public terms" in told
    assert call_locks(capsys, "verify", folder / "statement.json") == told
    answer = json.loads(call_locks(capsys, "verify", folder, "--json"))
    assert answer["holds"]
    assert len(answer["epsilons"]) == 12


def test_what_a_ledger_had_spent_is_named_as_not_recomputed(capsys):
    told = call_locks(capsys, "verify", made_bundle("local, filter, stopped early"))
    assert "what arm arm had spent when it ended is its ledger's: not recomputed" in told
    assert "holds as far as it was checked: 8 epsilons" in told


# What the whole does not lead to


def test_a_change_of_a_page_is_found_by_its_digest_too():
    """In one line each, what is refused as no statement included."""
    document = read_document(made_bundle("two arms"))
    whole = (made_bundle("two arms") / "report.html").read_text("utf-8")
    before, after = re.split(r'(?<=id="locks-public">).*?(?=</script>)', whole, flags=re.S)
    assert verify(written(whole)).faults == []
    for path, _, other in list(changes(Statement, document))[::7]:
        try:
            faults = verify(
                written(before + in_script(changed(document, path, other)) + after)
            ).faults
        except ValueError as error:  # of another format
            faults = [str(error)]
        assert faults, path
        assert all("\n" not in fault for fault in faults)


def test_a_forger_who_changes_terms_and_epsilon_together_meets_the_settings():
    document = read_document(made_bundle("uniform"))
    better = read_document(made_bundle("limited"))["arms"][0]
    forged = copy.deepcopy(document)
    arm = forged["arms"][0]
    arm["terms"], arm["privacy"] = better["terms"], better["privacy"]
    forged["all_arms"] = better["privacy"]
    faults = forged_faults(forged)
    assert any(fault.startswith("arms[arm].terms.PUBLIC[0]") for fault in faults), faults


# Versions, and what is no page


def test_a_statement_of_another_version_is_refused_by_it(capsys):
    call_locks(capsys, "verify", OLD, code=2)
    with pytest.raises(ValueError, match=r"statement of version 0\.1, .*expected format 3"):
        verify(OLD / "statement.json")
    document = {"statement": json.loads((OLD / "statement.json").read_text())}
    with pytest.raises(ValueError, match=r"version 0\.1"):
        verify(written(page(document | {"config": {}, "rounds": []})))
    newer = read_document(made_bundle("none"))
    for number, one in ((4, newer | {"format": 4}), (2, {"statement": newer | {"format": 2}})):
        with pytest.raises(ValueError, match=f"format {number}; this version reads format 3"):
            verify(written(page(one)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<p>hello</p>", "0 elements"),
        ('<script id="locks-public">{}</script>' * 2, "2 elements"),
        ('<script id="locks-public">{"a": 1, "a": 2}</script>', "stands twice"),
        ('<script id="locks-public">{"a": NaN}</script>', "NaN is no number"),
        ('<script id="locks-public">{"a": 1e999}</script>', "1e999 is no number"),
        ("<p><![x[", "not valid HTML"),
        ('<script id="locks-public">[]</script>', "not a statement"),
        ('<script id="locks-public">{"statement": 3}</script>', "not a statement"),
    ],
)
def test_what_is_no_page_is_one_line(text, told, tmp_path):
    (tmp_path / "x.html").write_text(text)
    with pytest.raises(ValueError, match=told):
        verify(tmp_path / "x.html")
    with pytest.raises(ValueError, match="no such file"):
        verify(tmp_path / "missing")


FIRST = ("arms", 0)
EXACT = [{"mechanism": "exact"}, 1]
NOISE = (*FIRST, "terms", "PUBLIC", 0, 0, "noise_multiplier")
MESSAGE = [
    {"mechanism": "gaussian", "release": "update", "noise_multiplier": 9.0, "uploaders": None},
    6,
]
COVERED = {
    "run": "first 0a0a0a0a",
    "population": "b",
    "spent_so_far": 1.0,
    "share": 1.0,
    "runs": [],
}


@pytest.mark.parametrize(
    ("kind", "path", "value", "told"),
    [
        ("uniform", (*FIRST, "planned"), 6.0, "schema"),
        ("uniform", (*FIRST, "rounds", 0, "expected_cohort"), 12, "schema"),
        ("uniform", (*FIRST, "planned"), 10**12, "schema"),
        ("uniform", (*FIRST, "terms", "PUBLIC", 0, 1), 10**12, "schema"),
        *(("uniform", NOISE, z, "schema") for z in (1e-160, 1e-300, 10**400, 1e200)),
        ("local", (*FIRST, "terms", "PUBLIC", 0, 0, "uploaders"), 10**400, "schema"),
        ("uniform", ("settings", "privacy", "delta"), "x", "schema"),
        ("uniform", ("settings", "privacy", "accountant"), {}, "schema"),
        ("local", ("settings", "privacy", "relation"), "foo", "schema"),
        ("uniform", ("settings", "seed"), 3, "schema"),
        ("uniform", ("settings", "more"), 3, "schema: settings.more"),
        ("uniform", ("covers",), {}, "schema"),
        ("uniform", ("covers",), COVERED, "schema"),
        ("uniform", (*FIRST, "terms", "PUBLIC"), [MESSAGE] * 2, "arms[arm].terms.PUBLIC = "),
        ("two arms", (*FIRST, "terms", "PUBLIC", 0), MESSAGE, "arms[a].terms.PUBLIC[0][0]."),
        ("as printed", (*FIRST, "claimed_epsilon"), None, "schema: arms[arm].claimed_epsilon"),
        ("as printed", (*FIRST, "claimed_epsilon"), ABSENT, "claimed_epsilon: missing"),
        ("uniform", (*FIRST, "rounds", 0, "expected_cohort"), 10**400, "schema"),
        ("uniform", ("settings", "arm", 0), {"name": "arm", "rule": []}, "schema"),
        ("uniform", ("settings", "data", "clients"), "x", "schema"),
    ],
)
def test_what_is_malformed_is_a_line_and_no_traceback(kind, path, value, told):
    document = changed(read_document(made_bundle(kind)), path, value)
    faults = verify(written(page(document))).faults
    assert any(told in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


@pytest.mark.parametrize("more", ["day = 2026-01-01", "x = inf", "# a comment", "seed = 3"])
def test_settings_that_the_statement_does_not_have(more, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(made_bundle("uniform"), folder)
    file = folder / "config.toml"
    file.write_text(f"{more}\n{file.read_text('utf-8')}", "utf-8")
    assert verify(folder).faults == ["config.toml: not the text of statement.json"]


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("uniform", {}, None),
        ("turns", {}, "bands = 3: not without a seed"),
        ("uniform", {"diagnostics": {"every": 2}}, "diagnostics.every = 2: only of a simulation"),
        ("uniform", {"privacy": {"population": "patients"}}, "covers: missing"),
    ],
)
def test_a_run_that_claims_to_be_none_of_a_simulation(kind, changes, told):
    document = copy.deepcopy(read_document(made_bundle(kind)))
    document["simulated"] = False
    for table, values in changes.items():
        document["settings"].setdefault(table, {}).update(values)
    faults = forged_faults(document)
    assert (faults == []) if told is None else any(told in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("seed",), 3, "settings: expected public ones"),
        (("data", "dir"), "/etc", "settings: expected public ones"),
        (("data", "name"), "/etc", "settings: expected public ones"),
        (("features",), {"name": "encoder", "file": "/etc/x.npz"}, "expected public ones"),
        (("features",), {"name": "encoder", "file": "/etc/x"}, "'/etc/x': expected a name"),
        (("model", "options"), {"where": "/etc"}, "settings: expected public ones"),
        (("arm", 0, "cohort"), "/etc", "settings.arm[0].cohort"),
    ],
)
def test_no_path_of_a_document_is_opened(path, value, told, monkeypatch):
    monkeypatch.setattr("locksfl.data.datasets.find_folder", None)
    forged = changed(read_document(made_bundle("uniform")), ("settings", *path), value)
    (fault,) = forged_faults(forged)
    assert told in fault
    assert forged_faults(read_document(made_bundle("uniform"))) == []


def test_covers_of_a_simulation_is_made_up():
    forged = read_document(made_bundle("uniform"))
    total = {"epsilon": 9.0, "delta": 1e-5, "relation": "zero-out", "order": None}
    forged["covers"] = COVERED | {"total": total, "composed": forged["all_arms"]}
    (fault,) = forged_faults(forged)
    assert re.match(r"covers = .*: the rest leads to nothing", fault)


def test_a_page_that_shows_something_else_than_its_data():
    """Any one character of what it shows, which is all but the script and the data."""
    whole = (made_bundle("uniform") / "report.html").read_text("utf-8")
    assert verify(written(whole)).faults == []
    shown = whole[whole.index("<body") : whole.index("<script")]
    assert "2.610" in shown
    for old, new in (
        ("2.610", "1.610"),
        ("no protection", "protection"),
        ("<body", "<body class=x"),
        ('stroke-width="2.0" d="M', 'stroke-width="2.0" d="M1'),  # a line of a figure
    ):
        assert old in whole
        path = written(whole.replace(old, new, 1))
        assert verify(path).faults == [f"{path.name}: shows something else than its data"], old


def test_a_page_that_something_else_has_drawn(tmp_path, capsys):
    """What it shows may be made up: it is refused or, within a bundle, named."""
    folder = tmp_path / "bundle"
    shutil.copytree(made_bundle("uniform"), folder)
    file = folder / "report.html"
    whole = file.read_text("utf-8").replace("2.610", "1.610", 1)
    for text in (re.sub(r"locks-fl [0-9.]+", "locks-fl 0.1", whole), page(read_document(folder))):
        file.write_text(text, "utf-8")
        call_locks(capsys, "verify", file, code=2)
        with pytest.raises(ValueError, match=r"drawn by .*, and here is .*cannot be compared"):
            verify(file)
        told = call_locks(capsys, "verify", folder)
        assert "report.html: drawn by " in told
        assert "holds as far as it was checked" in told
        assert "the parts fit each other" not in told
    forged = changed(read_document(folder), ("digest",), "0" * 64)
    assert verify(written(page(forged))).faults[0].startswith("digest")  # whatever has drawn it


def test_files_of_a_bundle(tmp_path):
    def damaged(change):
        folder = tmp_path / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made_bundle("uniform"), folder)
        change(folder)
        return verify(folder).faults

    assert damaged(lambda folder: None) == []
    model = "model-arm.npz"
    assert damaged(lambda f: (f / model).unlink()) == [f"{model}: missing"]
    (fault,) = damaged(lambda f: (f / model).write_bytes(b"other"))
    assert fault == f"{model}: another file than the one that was published"

    (fault,) = damaged(lambda f: (f / "ledger.sqlite").write_bytes(b"secret"))
    assert fault.startswith("ledger.sqlite: no file of a bundle")

    def reword(folder):
        text = (folder / "STATEMENT.md").read_text()
        (folder / "STATEMENT.md").write_text(text.replace("2.610", "1.610"))

    assert damaged(reword) == ["STATEMENT.md: not the text of statement.json"]
    assert damaged(lambda f: (f / "report.html").unlink()) == ["report.html: missing"]

    def repaint(folder):
        text = (folder / "report.html").read_text("utf-8")
        (folder / "report.html").write_text(text.replace("2.610", "1.610"), "utf-8")

    assert damaged(repaint) == ["report.html: shows something else than its data"]


def own(kind, number=0, before=None):
    """A document of a kind, one of whose arms has a rule of the operator's own."""
    document = read_document(made_bundle(kind, before))
    document["settings"]["arm"][number]["rule"] = "antigravity:rule"
    return document


def test_code_of_the_operators_own_is_not_imported(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("locksfl.methods.load", None)
    for kind in KINDS:
        assert forged_faults(own(kind)) == [], kind
    document = sealed(own("uniform"))
    (tmp_path / "x.html").write_text(public_page(document), "utf-8")
    told = call_locks(capsys, "verify", tmp_path / "x.html")
    assert "antigravity:rule is code of the operator's own" in told
    assert "holds as far as it was checked: 8 epsilons" in told


def test_what_needs_no_own_rule_is_compared_beside_one():
    free = [MESSAGE[0] | {"noise_multiplier": 1.0, "uploaders": 10**8}, 6]
    document = own("two arms")
    document["settings"]["privacy"]["trust"] = "none"
    costs = list(document["all_arms"])
    for arm in document["arms"]:
        arm["terms"] = {"SERVER": [free], "PUBLIC": [free]}
        costs += arm["privacy"]
        for line in arm["rounds"]:
            line["epsilon"] = 0.0
    for cost in costs:
        cost |= {"epsilon": 0.0, "accountant": "gdp"}
    assert forged_faults(document)
    public, server = (("arms", 0, "terms", who) for who in ("PUBLIC", "SERVER"))
    for kind, path, value, told in (
        ("two arms", ("arms", 1, *public[2:], 0, 0, "second_rate"), 0.1, "arms[b].terms.PUBLIC[0]"),
        ("none", public, [free], "[0][0].mechanism = 'gaussian': the rest leads to 'exact'"),
        ("uniform", server, [free], "[0][0].mechanism = 'gaussian': the rest leads to 'exact'"),
        ("uniform", public, [free], "= 'gaussian': the rest leads to 'poisson-gaussian'"),
        ("local", public, [EXACT], "[0][0].mechanism = 'exact': the rest leads to 'gaussian'"),
        ("local", (*public, 0, 0, "uploaders"), 10**8, "uploaders = 100000000: the rest leads to"),
        ("local", (*server, 0, 0, "uploaders"), 60, "uploaders = 60: the rest leads to nothing"),
        (
            "local",
            (*server, 0, 0, "noise_multiplier"),
            9.5,
            "= 9.5: too large: the rest leads to 9",
        ),
        ("norm", (*public, 0, 0, "first_multiplier"), 9.5, "= 9.5: too large: the rest leads to 4"),
        ("local, filter", (*server, 0, 0, "budget_epsilon"), 9.5, "= 9.5: too small: the rest"),
        ("turns", (*public, 0, 0, "separation"), 4, "separation = 4: the rest leads to 3"),
        ("uniform", ("settings", "privacy", "filter"), True, "privacy.filter = true"),
    ):
        faults = forged_faults(changed(own(kind), path, value))
        assert any(told in fault for fault in faults), (kind, path, faults)


def test_noise_that_own_code_may_hide_is_compared_with_settings_and_terms():
    """A rung that no term has, norms that only the settings know, and rungs beside a fixed noise:
    each was taken once."""
    ladder = changed(own("uniform"), ("arms", 0, "noise", "ladder"), [0.01, 1.3])
    assert any("the settings fix the noise" in fault for fault in forged_faults(ladder))
    del ladder["settings"]["arm"][0]["noise_multiplier"]
    ladder["settings"]["privacy"]["epsilon"] = 6.0
    assert forged_faults(ladder) == [
        "no run could be so: noise.ladder: expected terms with a choice of each rung's noise"
    ]
    lower = own("coin, rate control")
    rungs = lower["arms"][0]["noise"]["ladder"]
    rungs[0] = rungs[0] / 2
    assert forged_faults(lower)
    norms = changed(own("uniform"), ("settings", "arm", 0, "norm_multiplier"), 4.0)
    assert forged_faults(norms)
    fixed = read_document(made_bundle("dpis"))
    fixed["settings"]["arm"][0] |= {"noise_multiplier": 123.0, "norm_multiplier": 4.0}
    assert any("the settings fix the noise" in fault for fault in forged_faults(fixed))


def test_an_epsilon_of_our_own_is_held_to_the_bounds_of_dp_accounting():
    """Where our accountant is the second opinion too, it agrees with itself, right or wrong."""
    ours = Recomputed(1.0, "locks pld", 2.0, 3.0)
    assert agreed(ours, 1.0) == 2.0
    assert agreed(replace(ours, epsilon=4.0), 4.0) == 3.0
    assert agreed(replace(ours, epsilon=2.5), 2.5) == 2.5
    assert agreed(replace(ours, epsilon=2.5), 2.0) == 2.5


def test_the_text_of_a_bundle_with_own_code_is_compared(tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(made_bundle("uniform"), folder)
    document = sealed(own("uniform"))
    (folder / "statement.json").write_text(json.dumps(document), "utf-8")
    (folder / "config.toml").write_text(tomli_w.dumps(document["settings"]), "utf-8")
    (folder / "report.html").write_text(public_page(document), "utf-8")
    assert verify(folder).faults == []
    text = (folder / "STATEMENT.md").read_text("utf-8")
    (folder / "STATEMENT.md").write_text(text.replace("2.610", "1.610"), "utf-8")
    assert verify(folder).faults == ["STATEMENT.md: not the text of statement.json"]


# Signatures


@pytest.fixture
def keys(tmp_path):
    """The files of two private keys and of their public halves."""
    files = []
    for name in ("mine", "other"):
        key = Ed25519PrivateKey.generate()
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}-public.pem"
        plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        private.write_bytes(key.private_bytes(PEM, *plain))
        public.write_bytes(
            key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        files += [private, public]
    return files


def test_signatures(keys, capsys):
    mine, public, _, others = keys
    folder = new_path()
    call_locks(capsys, "publish", made_run("uniform"), folder, "--sign", mine)
    told = call_locks(capsys, "verify", folder)
    assert "signed with the key SHA256:" in told
    assert "anybody can make a key" in told
    assert "anybody" not in call_locks(capsys, "verify", folder, "--key", public)
    call_locks(capsys, "verify", folder, "--key", others, code=1)
    assert "signed by another key" in verify(folder, others).faults[0]
    assert "not signed" in verify(made_bundle("uniform"), public).faults[0]

    document = read_document(folder)
    forged = changed(
        document, ("arms", 0, "rounds", 0, "scores", "loss"), 1.5
    )  # nothing else says so
    assert forged_faults(forged) == []
    assert verify(write_page(sealed(forged))).faults == []  # without the signature, a new digest
    kept = sealed(forged)
    kept["signature"] = document["signature"]
    for path in (write_page(sealed(forged)), write_page(kept)):
        assert any("signature: " in fault for fault in verify(path, public).faults)
    assert verify(write_page(kept)).faults == [
        "signature: the signature is not that of this document"
    ]


def test_wrong_keys_are_refused_in_one_line(keys, tmp_path):
    mine, public, *_ = keys
    key = serialization.load_pem_private_key(mine.read_bytes(), None)
    locked, curve = tmp_path / "locked.pem", tmp_path / "curve.pem"
    secret = serialization.BestAvailableEncryption(b"word")
    locked.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    curve.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(PEM, *plain))
    for path, told in (
        (locked, "has a password"),
        (curve, "another kind"),
        (public, "private key"),
    ):
        with pytest.raises(ValueError, match=rf"--sign .*{told}"):
            publish_folder(made_run("uniform"), tmp_path / "bundle", path)
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(ValueError, match=r"--key .*expected a public key"):
        verify(made_bundle("uniform"), mine)


# The schema


def test_the_schema_in_the_docs_is_the_one_of_the_types():
    published = json.loads((ROOT / "docs" / "statement.schema.json").read_text())
    Draft202012Validator.check_schema(published)
    assert published == schema(), "expected: locksfl.experiment.record.schema() (make schema)"
    for kind in KINDS:
        told = json.loads((made_bundle(kind) / "statement.json").read_text())
        Draft202012Validator(published).validate(told)
        assert not Draft202012Validator(published).is_valid(told | {"cohort": 3})
        settings = told["settings"] | {"cohort": 3}
        assert not Draft202012Validator(published).is_valid(told | {"settings": settings})

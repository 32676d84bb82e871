"""A configuration is read as it was meant, or refused in one line that says why."""

from __future__ import annotations

import dataclasses
import re
import typing

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from locksfl.cli.main import example_config
from locksfl.experiment.config import Config, parse_config, read_config, to_table
from locksfl.models.build import MODELS

TYPOS = [
    ("", "sed", "seed"),
    ("data", "client", "clients"),
    ("data.split", "kinds", "kind"),
    ("model", "hiden", "hidden"),
    ("features", "fil", "file"),
    ("local", "epoch", "epochs"),
    ("train", "clipnorm", "clip_norm"),
    ("train.optimizer", "momentun", "momentum"),
    ("privacy", "epsilom", "epsilon"),
    ("diagnostics", "evry", "every"),
    ("plan", "progres", "progress"),
    ("arm.locks", "flor", "floor"),
]


def read(*changes: str) -> Config:
    """The example with changes, and its arms: what `locks run` checks before it makes a folder."""
    return checked(parse_config(example_config(), changes))


def checked(config: Config) -> Config:
    """With arms whose noise is given once and in full."""
    for arm in config.arms:
        config.privacy.check_noise(arm)
    return config


def refusal(*changes: str) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        read(*changes)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_example_is_the_documented_experiment():
    config = read()
    assert [arm.name for arm in config.arms] == ["uniform", "locks"]
    assert (config.data.clients, config.train.rounds, config.privacy.epsilon) == (100, 100, 10.0)
    assert config.seed is None


@pytest.mark.parametrize(("table", "typo", "meant"), TYPOS)
def test_an_unknown_key_is_refused_with_the_nearest_name(table, typo, meant):
    key = f"{table}.{typo}".lstrip(".")
    text = refusal(f"{key}=1")
    assert text.startswith(f"{key} = 1: unknown setting")
    assert f"did you mean {meant!r}" in text


def test_every_table_has_its_typo_above():
    def tables(kind: type) -> set[type]:
        hints = typing.get_type_hints(kind).values()
        inner = {a for h in hints for a in (h, *typing.get_args(h)) if dataclasses.is_dataclass(a)}
        return {kind}.union(*(tables(i) for i in inner))

    assert len(tables(Config)) == len(TYPOS)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("train.rounds=2.5", "train.rounds = 2.5: expected a whole number"),
        ("train.rounds=true", "train.rounds = True: expected a whole number"),
        ("train.clip_norm='big'", "train.clip_norm = 'big': expected a number"),
        ("train.clip_norm=false", "train.clip_norm = False: expected a number"),
        ("name=3", "name = 3: expected a text"),
        ("privacy.tuned_without_privacy=1", "= 1: expected true or false"),
        ("model.hidden=200", "model.hidden = 200: expected a list"),
        ("model.hidden=['wide']", "model.hidden = 'wide': expected a whole number"),
        ("train=5", "train = 5: expected a table"),
        ("data.split=iid", "data.split = 'iid': expected a table"),
        ("arm=3", "arm = 3: expected a list"),
        ("arm=[3]", "arm = 3: expected a table"),
        ("arm=[]", "arm is missing"),
        ("arm=[{cohort = 3}]", "arm.name is missing"),
        ("arm.locks.cohort='all'", "arm.locks.cohort = 'all': expected a number"),
        ("seed='x'", "seed = 'x': expected a whole number"),
    ],
)
def test_a_wrong_type_is_refused(change, expected):
    assert expected in refusal(change)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["name=''"], "name = ''"),
        (["name='../up'"], "name = '../up'"),
        (["seed=-1"], "seed = -1: expected a whole number >= 0"),
        (["data.name=mnst"], "data.name = 'mnst': expected one of mnist-embedded, mnist"),
        (["data.clients=0"], "data.clients = 0: expected a whole number >= 1"),
        (["data.split_seed=-2"], "data.split_seed = -2"),
        (["data.split.kind=shard"], "did you mean 'shards'?"),
        (["data.split.alpha=0.5"], "data.split.alpha = 0.5: split 'shards' takes no alpha"),
        (["data.split={kind='dirichlet'}"], "data.split.alpha is missing"),
        (["data.split={kind='dirichlet', alpha=0}"], "data.split.alpha = 0.0: expected"),
        (["data.split.classes=0"], "data.split.classes = 0"),
        (["model.name=rnn"], "model.name = 'rnn': expected one of softmax, mlp"),
        (["model.hidden=[20]"], "model 'softmax' takes no hidden"),
        (["model.name=mlp", "model.hidden=[0]"], "model.hidden = 0"),
        (["local.update=epoch"], "did you mean 'epochs'?"),
        (["local.epochs=2"], "local.epochs = 2: local.update 'gradient' takes no epochs"),
        (["local.update=epochs", "local.step=0"], "local.step = 0.0: expected a number > 0"),
        (["local.min_samples=5", "local.max_samples=4"], "local.max_samples = 4: expected at"),
        (["train.rounds=0"], "train.rounds = 0"),
        (["train.clip_norm=0"], "train.clip_norm = 0.0: expected a number > 0"),
        (["train.clip_norm=-1.5"], "train.clip_norm = -1.5: expected a number > 0"),
        (["train.clip_norm=nan"], "train.clip_norm = nan: expected a number > 0"),
        (["train.clip_norm=inf"], "train.clip_norm = inf: expected a number > 0"),
        (["train.average_last=101"], "train.average_last = 101: expected at most train.rounds"),
        (["train.evaluate_every=0"], "train.evaluate_every = 0"),
        (["train.optimizer.name=sdg"], "did you mean 'sgd'?"),
        (["train.optimizer.schedule=cosine"], "expected one of inverse-sqrt, constant, linear"),
        (["local.weight=size"], "local.weight = 'size': expected local.max_samples, or local.ref"),
        (["local.reference_samples=5"], "local.reference_samples = 5: only with local.weight"),
        (["train.lengths=long"], "train.lengths = 'long': expected one of clipped, equal"),
        (["arm.locks.lengths=long"], "arm.locks.lengths = 'long': expected one of clipped, equal"),
        (
            ["local.weight=size", "local.max_samples=9", "train.lengths=equal"],
            "local.weight = 'size': no effect with lengths = 'equal' (arm 'uniform'), which scales",
        ),
        (
            ["local.weight=size", "local.max_samples=9", "arm.locks.lengths=equal"],
            "local.weight = 'size': no effect with lengths = 'equal' (arm 'locks'), which scales",
        ),
        (["train.optimizer.step=0"], "train.optimizer.step = 0.0"),
        (["train.optimizer.momentum=0.9"], "optimizer 'sgd' takes no momentum"),
        (["privacy.trust=centrl"], "did you mean 'central'?"),
        (["privacy.epsilon=0"], "privacy.epsilon = 0.0: expected a number > 0"),
        (["privacy.epsilon=-1"], "privacy.epsilon = -1.0"),
        (["privacy.epsilon=inf"], "privacy.epsilon = inf"),
        (["privacy.epsilon=nan"], "privacy.epsilon = nan"),
        (["privacy.delta=0"], "privacy.delta = 0.0: expected a number in (0, 1)"),
        (["privacy.delta=1"], "privacy.delta = 1.0: expected a number in (0, 1)"),
        (["privacy.accountant=rpd"], "did you mean 'rdp'?"),
        (["privacy.relation=replase"], "did you mean 'replace'?"),
        (["privacy.trust=none"], "privacy.epsilon = 10.0: trust 'none' adds no noise"),
        (["arm.locks.name='a/b'"], "arm.name = 'a/b': expected up to 100 letters"),
        (["arm.locks.name=uniform"], "arm.name = 'uniform': expected a name that no other arm"),
        (["arm.locks.rule=norms"], "did you mean 'norm'?"),
        (["arm.locks.estimator=caped"], "did you mean 'capped'?"),
        (["arm.locks.cohort=0"], "arm.locks.cohort = 0.0: expected a number > 0"),
        (["arm.locks.cohort=101"], "arm.locks.cohort = 101: expected at most the 100 clients"),
        (["arm.locks.uploads=31"], "arm.locks.uploads = 31: expected at most the cohort, 30"),
        (["arm.locks.uploads=-1"], "arm.locks.uploads = -1"),
        (["arm.locks.floor=1"], "arm.locks.floor = 1.0: expected a share in [0, 1)"),
        (["arm.locks.floor=-0.1"], "arm.locks.floor = -0.1: expected a share in [0, 1)"),
        (["arm.locks.floor=nan"], "arm.locks.floor = nan"),
        (["arm.locks.norm_low=0.6"], "arm.locks.norm_low = 0.6: expected at least uploads / coh"),
        (["arm.locks.norm_low=0"], "arm.locks.norm_low = 0.0: expected a rate in (0, 1]"),
        (["arm.locks.norm_low=1.1"], "arm.locks.norm_low = 1.1: expected a rate in (0, 1]"),
        (["arm.locks.clip_norm=0"], "arm.locks.clip_norm = 0.0: expected a number > 0"),
        (["arm.locks.step=-1"], "arm.locks.step = -1.0: expected a number > 0"),
        (["arm.uniform.floor=0.1"], "arm.uniform.floor = 0.1: rule 'uniform' takes no floor"),
        (["arm.uniform.norm_multiplier=1"], "rule 'uniform' takes no norm_multiplier"),
        (["arm.uniform.rule=full"], "arm.uniform.cohort = 20: rule 'full' asks all 100 clients"),
        (["arm.uniform.rule=weights"], "arm.uniform.weights: missing"),
        (["arm.uniform.weights=[1.0]"], "arm.uniform.weights: only with rule 'weights'"),
        (["arm.uniform.rule=weights", "arm.uniform.weights=[0.5, 0.5]"], "expected 100 numbers"),
        (["arm=[{name='a'}]"], "arm.a.cohort is missing"),
    ],
)
def test_a_value_out_of_range_is_refused(changes, expected):
    assert expected in refusal(*changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ["arm.locks.estimator=horvitz-thompson"],
            "arm.locks.estimator = 'horvitz-thompson': not with trust 'central'",
        ),
        (
            [
                "privacy.trust=local",
                "arm.locks.estimator=horvitz-thompson",
                "arm.locks.floor=0",
            ],
            "arm.locks.floor = 0: estimator 'horvitz-thompson' divides by the probability",
        ),
        (["arm.locks.estimator=weighted"], "arm.locks.rule = 'norm': not with estimator"),
        (["arm.locks.noise_multiplier=1"], "arm.locks.noise_multiplier = 1.0: privacy.epsilon"),
        (["arm.locks.noise_multiplier=0"], "arm.locks.noise_multiplier = 0.0: expected a number"),
        (
            ["privacy.trust=none", "privacy.epsilon=inf", "arm.locks.noise_multiplier=1"],
            "arm.locks.noise_multiplier = 1.0: trust 'none' adds no noise",
        ),
        (
            ["privacy.trust=none", "privacy.epsilon=inf", "arm.locks.norm_multiplier=2"],
            "arm.locks.norm_multiplier = 2.0: trust 'none' adds no noise",
        ),
    ],
)
def test_what_would_void_a_guarantee_is_refused(changes, expected):
    assert expected in refusal(*changes)


WITHOUT_EPSILON = """
[data]
clients = 10
[privacy]
trust = "{trust}"
[[arm]]
name = "locks"
rule = "norm"
cohort = 5
{more}
"""


@pytest.mark.parametrize("trust", ["central", "local"])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "arm.locks.noise_multiplier is missing: expected it, or privacy.epsilon"),
        ("noise_multiplier = 1.0", "arm.locks.norm_multiplier is missing"),
    ],
)
def test_no_noise_by_accident(trust, more, expected):
    with pytest.raises(ValueError, match=expected):
        checked(parse_config(WITHOUT_EPSILON.format(trust=trust, more=more)))
    both = parse_config(
        WITHOUT_EPSILON.format(trust=trust, more="noise_multiplier = 1\nnorm_multiplier = 3")
    )
    assert both.arms[0].noise_multiplier == 1.0


def test_horvitz_thompson_is_allowed_where_clients_add_the_noise():
    config = read("privacy.trust=local", "arm.locks.estimator=horvitz-thompson")
    assert config.arms[1].estimator == "horvitz-thompson"


@pytest.mark.parametrize("bad", ["nan", "-0.5", "0.2"])
def test_weights_are_numbers_that_sum_to_one(bad):
    weights = ", ".join(["0.5", bad, "0.5"])
    text = "[data]\nclients = 3\n[privacy]\ntrust = 'none'\n[[arm]]\nname = 'w'\nrule = 'weights'\n"
    with pytest.raises(ValueError, match=r"arm\.w\.weights: expected 3 numbers >= 0 that sum to 1"):
        parse_config(f"{text}cohort = 2\nweights = [{weights}]")


def test_changes_reach_tables_inline_tables_and_named_arms():
    config = read(
        "name=other",
        "seed = 5",
        "train.rounds=7",
        "train.optimizer.step=0.25",
        "train.optimizer={name='adam', step=0.5}",
        "data.split={kind='dirichlet', alpha=0.3}",
        "arm.locks.floor=0.2",
        "local={update='epochs', epochs=2}",
        "privacy.relation='replace'",
    )
    assert (config.name, config.seed, config.train.rounds) == ("other", 5, 7)
    assert (config.train.optimizer.name, config.train.optimizer.step) == ("adam", 0.5)
    assert (config.data.split.kind, config.data.split.alpha) == ("dirichlet", 0.3)
    assert config.data.split.classes is None
    assert [arm.floor for arm in config.arm] == [None, 0.2]
    assert [arm.floor for arm in config.arms] == [0.0, 0.2]
    assert (config.local.update, config.local.epochs) == ("epochs", 2)
    assert config.privacy.relation == "replace"
    assert read("train.optimizer.step=0.25").train.optimizer.schedule == "inverse-sqrt"


def test_a_change_without_a_value_leaves_a_setting_out():
    """Found alone here: rule full could not be given to an arm whose file states a cohort."""
    rule = "arm.locks.rule=full"
    assert refusal(rule).endswith("(--set KEY= leaves a setting out)")
    assert not refusal("arm.locks.floor=2").endswith("out)")
    settings = ("cohort", "uploads", "floor", "norm_low")
    given = [name for name in settings if name in read().arm[1].given()]
    arm = read(rule, *(f"arm.locks.{name} = " for name in given)).arms[1]
    assert (arm.rule, arm.cohort, arm.uploads, arm.floor) == ("full", 100, 100, 0)
    assert read("train.optimizer=").train.optimizer.schedule == "inverse-sqrt"


def test_an_arm_with_a_dot_in_its_name_can_be_changed():
    config = read("arm.locks.name='floor-0.2'", "arm.floor-0.2.floor=0.2")
    assert config.arms[1].floor == 0.2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("train.rounds", "expected key=value"),
        ("=3", "expected key=value"),
        ("train..rounds=3", "expected key=value"),
        ("train.rouns=", "expected a value; train.rouns is not set"),
        ("arm.lcks.floor=0.1", "no arm 'lcks'; there are uniform, locks"),
        ("arm.0.floor=0.1", "no arm '0'"),
        ("arm.floor=0.1", "expected a setting of a table or of a named arm"),
        ("train.rounds.more=1", "expected a setting of a table"),
        ("train.rounds.more.still=1", "train.rounds is not a table"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change, expected):
    assert expected in refusal(change)


def test_files_that_cannot_be_read_are_named(tmp_path):
    for name, content, expected in (
        ("toml", b"[data\n", "not valid TOML"),
        ("latin", "name = 'zoë'".encode("latin-1"), "not valid TOML"),
        ("missing", None, "No such file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=expected) as caught:
            read_config(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="directory"):
        read_config(tmp_path)


# what a user may write, one strategy a table
NUMBERS = st.floats(1e-6, 1e6)
SPLITS = st.one_of(
    st.just({"kind": "iid"}),
    st.builds(lambda c: {"kind": "shards", "classes": c}, st.integers(1, 10)),
    st.builds(lambda a: {"kind": "dirichlet", "alpha": a}, NUMBERS),
)
LOCALS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"update": st.just("epochs")},
        optional={"epochs": st.integers(1, 9), "batch": st.integers(1, 99), "step": NUMBERS},
    ),
    st.builds(
        lambda low, more: {"min_samples": low, "max_samples": low + more}, *[st.integers(1, 50)] * 2
    ),
)
EXPERIMENT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text("abcXYZ019-_.é", min_size=1, max_size=20),
        "seed": st.integers(0, 2**130),
        "data": st.fixed_dictionaries(
            {"split": SPLITS}, optional={"clients": st.integers(1, 500), "dir": st.text()}
        ),
        "model": st.builds(lambda h: {"name": "mlp", "hidden": h}, st.lists(st.integers(1, 99))),
        "local": LOCALS,
        "train": st.fixed_dictionaries(
            {"clip_norm": NUMBERS}, optional={"rounds": st.integers(1, 10**6)}
        ),
        "privacy": st.one_of(
            st.fixed_dictionaries({"epsilon": NUMBERS}, optional={"delta": st.floats(1e-12, 0.5)}),
            st.sampled_from([{"trust": "none", "epsilon": float("inf")}, {"trust": "none"}]),
        ),
    },
)  # fmt: skip


@st.composite
def arms(draw, clients, noise):
    """A sound [[arm]] table; with its own multipliers where nothing else gives the noise."""
    rule = draw(st.sampled_from(["uniform", "norm", "full", "weights"]))
    table = {"rule": rule}
    if rule != "full":
        whole, broken = st.integers(1, clients), st.floats(1e-6, clients)
        table["cohort"] = draw(st.one_of(whole, broken))
        if draw(st.booleans()):
            table["uploads"] = table["cohort"] * draw(st.floats(0.001, 1))
    if rule == "norm" and draw(st.booleans()):
        table["floor"] = draw(st.floats(0, 0.99))
    if rule == "weights":
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        table["weights"] = rng.dirichlet(np.ones(clients)).tolist()
    elif draw(st.booleans()):
        table["estimator"] = draw(st.sampled_from(["capped", "literal"]))
    if noise:
        table["noise_multiplier"] = draw(NUMBERS)
    if noise and rule == "norm":
        table["norm_multiplier"] = draw(NUMBERS)
    if draw(st.booleans()):
        table["clip_norm"] = draw(NUMBERS)
    return table


@st.composite
def experiments(draw):
    table = draw(EXPERIMENT)
    clients = table.get("data", {}).get("clients", 100)
    table["arm"] = draw(st.lists(arms(clients, "privacy" not in table), min_size=1, max_size=3))
    return table


@settings(max_examples=60, deadline=None, derandomize=True)
@given(experiments())
def test_a_resolved_configuration_reads_back_the_same(table):
    for number, arm in enumerate(table["arm"]):
        arm["name"] = f"arm{number}"
    config = parse_config(tomli_w.dumps(table))
    resolved = tomli_w.dumps(to_table(config))
    assert parse_config(resolved) == config
    assert tomli_w.dumps(to_table(parse_config(resolved))) == resolved


def test_a_resolved_configuration_states_the_defaults():
    table = to_table(parse_config(example_config()))
    assert table["data"]["split_seed"] == 0
    assert table["train"]["evaluate_every"] == 1
    assert "seed" not in table
    assert table["train"]["clip_norm"] == 1.0


def test_natural_users_fix_the_number_of_clients():
    text = (
        '[data]\nname = "mnist-writers"\n[privacy]\ntrust = "none"\n[[arm]]\nname = "a"\ncohort = 5'
    )
    config = parse_config(text)  # known from the catalogue: no file is opened
    assert (config.data.clients, config.data.split.kind) == (539, "natural")
    assert parse_config(text, ["data.split.kind=iid"]).data.clients == 100
    assert parse_config(tomli_w.dumps(to_table(config))) == config
    with pytest.raises(ValueError, match=r"data.max_samples = 3: .* data.min_samples = 4"):
        parse_config(text, ["data.min_samples=4", "data.max_samples=3"])
    with pytest.raises(ValueError, match="mnist-embedded does not say who owns its records"):
        parse_config(text, ["data.name=mnist-embedded", "data.split.kind=natural"])
    with pytest.raises(ValueError, match=r"data.name = 'mnist-writer': .*mean 'mnist-writers'"):
        parse_config(text, ["data.name=mnist-writer"])


def test_the_example_names_every_built_in_model_and_the_basic_rules():
    told = example_config()
    for name in (*MODELS, "uniform", "norm", "coin", "full", "weights"):
        assert re.search(rf"# .*\b{name}\b", told), name

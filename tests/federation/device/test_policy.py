"""The policy file: what the owner wrote, or one line that says what is wrong with it."""

from __future__ import annotations

import pytest

from locksfl.federation.device import Policy

GOOD = """
epsilon = 8.0
delta = 1e-5
relation = "replace"
max_clip_norm = 1
min_noise_multiplier = 4.0
min_norm_multiplier = 8.0
max_rounds = 200
"""


def read(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return Policy.read(path)


def test_a_policy_is_read_as_written(tmp_path):
    policy = read(tmp_path, GOOD)
    assert policy == Policy(1.0, 4.0, 200, 8.0, 1e-5, "replace", "local", 8.0)
    assert (policy.max_parameters, policy.answer_seconds) == (10**8, 0.0)
    other = read(tmp_path, GOOD + "max_parameters = 7850\nanswer_seconds = 5\n")
    assert (other.max_parameters, other.answer_seconds) == (7850, 5.0)
    assert policy.budget is not None
    assert (policy.budget.epsilon, policy.budget.relation) == (8.0, "replace")


def test_trust_is_local_unless_the_file_says_otherwise(tmp_path):
    assert read(tmp_path, GOOD).trust == "local"
    central = 'trust = "central"\nmax_clip_norm = 1.0\nmin_noise_multiplier = 1.0\nmax_rounds = 9'
    policy = read(tmp_path, central)
    assert policy.trust == "central"
    assert policy.budget is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("epsilon", "epsilom"), "unknown setting (did you mean 'epsilon'?)"),
        (("max_clip_norm", "clip_norm"), "unknown setting (did you mean 'max_clip_norm'?)"),
        (("epsilon = 8.0\n", ""), "epsilon is missing"),
        (("delta = 1e-5\n", ""), "delta is missing"),
        (("max_clip_norm = 1\n", ""), "max_clip_norm is missing"),
        (("8.0", "-8.0"), "epsilon = -8.0: expected a number > 0"),
        (("8.0", "inf"), "epsilon = inf: expected a number > 0"),
        (("8.0", "nan"), "epsilon = nan: expected a number > 0"),
        (("8.0", '"much"'), "epsilon = 'much': expected a number"),
        (("1e-5", "1.0"), "delta = 1.0: expected a number in (0, 1)"),
        (("replace", "replaced"), "expected one of zero-out, replace (did you mean 'replace'?)"),
        (("4.0", "0"), "min_noise_multiplier = 0.0: expected a number > 0"),
        (("200", "0"), "max_rounds = 0: expected a whole number >= 1"),
        (("200", "200.5"), "max_rounds = 200.5: expected a whole number"),
        (("200", "200\nmax_parameters = 0"), "max_parameters = 0: expected a whole number >= 1"),
        (("200", "200\nanswer_seconds = -1"), "answer_seconds = -1.0: expected a number >= 0"),
        (("max_rounds = 200\n", ""), "expected a line such as max_rounds = 200"),
        (("max_rounds", 'trust = "none"\nmax_rounds'), "expected one of central, local"),
        (("max_rounds", 'trust = "central"\nmax_rounds'), "epsilon = 8.0: expected none with"),
        (("epsilon =", "epsilon ="), None),
        (("= 8.0", "8.0"), "not valid TOML"),
    ],
)
def test_a_bad_policy_is_one_line_that_names_file_and_setting(tmp_path, change, told):
    text = GOOD.replace(*change, 1)
    if told is None:
        read(tmp_path, text)
        return
    with pytest.raises(ValueError, match=r"policy\.toml: ") as caught:
        read(tmp_path, text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_policy(tmp_path):
    with pytest.raises(ValueError, match="no such policy file"):
        Policy.read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.toml"):
        Policy.read(tmp_path / "binary.toml")

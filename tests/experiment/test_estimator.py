"""scikit-learn's own checks on `LocksClassifier`, and what they do not know: users and privacy."""

from __future__ import annotations

import importlib
import math
import pickle
import sys
from unittest import mock

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from locksfl import LocksClassifier
from locksfl.simulate.cache import VARIABLE

NO_NOISE = {"epsilon": None, "trust": "none", "random_state": 0}
# without noise, and everybody in every round: what scikit-learn checks is the interface
CHECKED = LocksClassifier(**NO_NOISE, rule="full", rounds=30, step=4.0, clip_norm=10.0)
CHECKS = {
    f"{check.func.__name__}-{number}": (estimator, check)
    for number, (estimator, check) in enumerate(estimator_checks_generator(CHECKED, mark=None))
}
# These do not apply: check_array_api_input needs SCIPY_ARRAY_API=1 and another array library, and
# the second half of check_classifier_data_not_an_array needs pandas. Both skip themselves.
# Most of the others compile rounds of their own shapes: `make test-long` runs them.
QUICK = [
    name
    for name in CHECKS
    if name.partition("-")[0].removeprefix("check_")
    in {
        "estimator_cloneable", "estimator_tags_renamed", "valid_tag_types", "estimator_repr",
        "no_attributes_set_in_init", "estimators_unfitted", "mixin_order", "complex_data",
        "do_not_raise_errors_in_init_or_set_params", "estimators_empty_data_messages",
        "classifiers_one_label", "classifiers_regression_target", "get_params_invariance",
        "set_params", "fit1d", "requires_y_none", "parameters_default_constructible",
        "estimators_nan_inf", "supervised_y_no_nan", "estimators_fit_returns_self",
    }
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _share_compiled_rounds():
    """As in a user's process, what is compiled once is compiled."""
    with mock.patch.dict("os.environ", {VARIABLE: ""}):
        yield


@pytest.mark.parametrize("name", QUICK)
def test_scikit_learns_quick_checks(name):
    estimator, check = CHECKS[name]
    check(estimator)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in QUICK])
def test_scikit_learns_other_checks(name):
    estimator, check = CHECKS[name]
    check(estimator)


@pytest.fixture(scope="module")
def table():
    """40 users with 10 records each, and two text labels."""
    rng = np.random.default_rng(0)
    users = np.repeat([f"user-{k}" for k in range(40)], 10)
    sick = rng.random(400) < 0.5
    x = 1.5 * sick[:, None] * np.array([1.0, -1.0, 0.0]) + rng.normal(size=(400, 3))
    return x, np.where(sick, "sick", "healthy"), users


def test_it_learns_with_users_and_states_its_epsilon(table):
    x, y, users = table
    model = LocksClassifier(epsilon=8.0, rounds=20, step=2.0, settings={"accountant": "rdp"})
    model.fit(x, y, users=users)
    assert model.classes_.tolist() == ["healthy", "sick"]
    assert model.score(x, y) > 0.7  # chance is a half
    assert 7.99 < model.epsilon_ <= 8.0
    assert {(c.observer, c.relation) for c in model.privacy_} == {
        (observer, relation)
        for observer in ("SERVER", "PUBLIC")
        for relation in ("zero-out", "replace")
    }
    assert model.simulated_ is False  # no seed
    sure = model.predict_proba(x)
    np.testing.assert_allclose(sure.sum(axis=1), 1)
    assert (model.classes_[sure.argmax(axis=1)] == model.predict(x)).all()
    assert model.result_.model.name == "softmax"
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_it_works_in_a_pipeline_and_a_search(table):
    """Users go with the records; a seed repeats a fit; without noise nobody is protected."""
    x, y, users = table
    quick = LocksClassifier(**NO_NOISE, rule="full", rounds=5)
    piped = make_pipeline(StandardScaler(), quick).fit(x, y, locksclassifier__users=users)
    assert piped[-1].epsilon_ == math.inf
    assert piped[-1].simulated_ is True
    search = GridSearchCV(quick, {"step": [0.001, 4.0]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8


def test_classes_that_are_given_are_public_and_others_refused(table):
    x, y, users = table
    model = LocksClassifier(**NO_NOISE, rule="full", rounds=2, classes=["dead", "healthy", "sick"])
    assert model.fit(x, y, users=users).predict_proba(x[:2]).shape == (2, 3)
    with pytest.raises(ValueError, match="y has 'healthy': expected one of classes"):
        LocksClassifier(classes=["sick", "dead"]).fit(x, y, users=users)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        LocksClassifier().fit(x, y, users=users[:3])


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch):
    for name in ("locksfl.experiment.estimator", "sklearn.base", "sklearn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match=r"sklearn is not installed: .*locks-fl\[sklearn\]"):
        importlib.import_module("locksfl.experiment.estimator")

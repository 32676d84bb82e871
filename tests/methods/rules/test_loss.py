"""The rule loss: in proportion to the mean loss."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.arm import Arm, loss_bound_of
from locksfl.experiment.config import parse_config
from rule_checks import ESTIMATES, never_above_what_is_charged, scores, unbiased_where_stated


def test_the_loss_over_its_bound():
    """C = 2, B = 2.5; above the bound C, and no number is 0."""
    found = scores("loss", {"loss": [0.0, 1.25, 2.5, 9.0, np.inf, np.nan]})
    np.testing.assert_allclose(found, [0, 1, 2, 2, 2, 0])
    np.testing.assert_allclose(scores("loss", {"loss": [1.25]}, loss_bound=5.0), [0.5])


def test_its_largest_probability():
    never_above_what_is_charged("loss")


@pytest.mark.parametrize(("estimator", "trust"), ESTIMATES)
def test_its_mean(estimator, trust):
    unbiased_where_stated("loss", estimator, trust)


def test_the_bound_follows_from_the_number_of_classes():
    """A guess among k classes loses ln k: the bound of an experiment is a little above it. What the
    file says counts, other rules have none, and an arm without data has that of about ten."""

    def bound(data, rule="loss", more=""):
        text = f'''
            data = {{ name = "{data}", clients = 12 }}
            privacy = {{ trust = "none" }}
            arm = [{{ name = "a", rule = "{rule}", cohort = 6, uploads = 3{more} }}]
        '''
        return parse_config(text, seed=1).arms[0].loss_bound

    for rule in ("loss", "oort", "rank", "power-of-choice"):
        assert bound("mnist-embedded", rule) == pytest.approx(1.1 * np.log(10), abs=1e-3)
    assert bound("shakespeare") == pytest.approx(1.1 * np.log(80), abs=1e-3)
    assert bound("shakespeare", more=", loss_bound = 3.0") == 3.0
    assert bound("shakespeare", "norm") == 1.0
    assert Arm("a", 12, 5, "loss", cohort=6.0, trust="none").loss_bound == 2.5
    assert all(loss_bound_of(k) > np.log(k) for k in (1, 2, 3, 10, 80, 10**6))

"""A classifier with scikit-learn's interface. It needs the extra "sklearn".

model = LocksClassifier(epsilon=8.0).fit(X, y, users=user_id)
model.predict(X_new), model.epsilon_
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from locksfl._loading import optional
from locksfl.data.population import Population
from locksfl.experiment.config import LocalConfig, OptimizerConfig
from locksfl.experiment.training import train
from locksfl.methods import RULES
from locksfl.models.build import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_consistent_length
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError:
    optional("sklearn", "sklearn")  # says what to install
    raise


class LocksClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """`locksfl.train` as an estimator: private at the level of users.

    Args:
        epsilon: what the whole fit may cost one user, against whoever sees the model.
        delta: well below 1 / users.
        model: a name of `locksfl.models`, "package.module:function", or a model.
        rounds: T.
        rule: who uploads.
        cohort: the users asked in a round, on average; None: a fifth of them.
        clip_norm, step: of the updates, and of the server.
        trust: who adds the noise; "none" adds none, and protects nobody.
        classes: the labels, in order. They should be given: without them they are read from `y`,
            so that a label that only one user has would show.
        random_state: a seed makes the fit a simulation, which protects nobody; None: the randomness
            is the operating system's.
        settings: other arguments of `locksfl.train`.
        local, optimizer: as in `locksfl.train`.

    Attributes:
        classes_: the labels.
        epsilon_: against PUBLIC under `relation` zero-out; infinite without noise.
        privacy_: the whole statement, a cost for each observer and relation.
        simulated_: whether there was a seed.
        result_: what `locksfl.train` returned, to be saved or exported.
    """

    def __init__(
        self,
        epsilon: float | None = 8.0,
        *,
        delta: float = 1e-5,
        model: str | Model = "softmax",
        rounds: int = 50,
        rule: str = "uniform",
        cohort: float | None = None,
        clip_norm: float = 1.0,
        step: float = 1.0,
        trust: str = "central",
        classes: ArrayLike | None = None,
        local: LocalConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        settings: dict[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.model = model
        self.rounds = rounds
        self.rule = rule
        self.cohort = cohort
        self.clip_norm = clip_norm
        self.step = step
        self.trust = trust
        self.classes = classes
        self.local = local
        self.optimizer = optimizer
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any, users: ArrayLike | None = None) -> LocksClassifier:
        """Train on records X with labels y.

        users: whose each record is. Without it every record counts as a user of its own, and a
            person with several of them is protected by as much less.
        """
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        owner = np.arange(len(X)) if users is None else np.asarray(users)
        check_consistent_length(X, owner)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        labels = {label: number for number, label in enumerate(self.classes_.tolist())}
        if unknown := set(y.tolist()) - labels.keys():
            raise ValueError(f"y has {min(unknown)!r}: expected one of classes = {self.classes!r}")
        if len(labels) < 2:
            raise ValueError(
                f"y has {len(labels)} class, {self.classes_[0]!r}: a classifier needs two or more"
            )
        # scikit-learn scores on records that it holds out itself: ours is one row of zeros
        none, label = np.zeros((1, X.shape[1]), X.dtype), np.zeros(1, np.int32)
        numbers = np.array([labels[label] for label in y.tolist()], np.int32)
        people = Population.from_arrays(X, numbers, owner, none, label, classes=len(labels))
        asked: dict[str, Any] = {"cohort": self.cohort or max(1.0, people.clients / 5)}
        if self.cohort is None and getattr(RULES.get(self.rule), "everyone", False):
            asked = {}
        self.result_ = train(
            people,
            model=self.model,
            rounds=self.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            trust=self.trust,
            seed=self.random_state,
            local=self.local,
            optimizer=self.optimizer,
            rule=self.rule,
            clip_norm=self.clip_norm,
            step=self.step,
            **{**asked, **(self.settings or {})},
        )
        self.privacy_, self.simulated_ = self.result_.privacy, self.result_.simulated
        (self.epsilon_,) = (
            cost.epsilon
            for cost in self.privacy_
            if (cost.observer, cost.relation) == ("PUBLIC", "zero-out")
        )
        return self

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """A score for each record and class; of two classes, by how much the second one leads."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """A probability for each record and class."""
        return softmax(self._scores(X).astype(np.float64), axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely label of each record."""
        scores = self._scores(X)
        return self.classes_[np.argmax(scores, axis=1)]

    def _scores(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return self.result_.scores(X)

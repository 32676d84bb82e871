"""Peer: pfl-research 0.6 with PyTorch. The round is pfl's own (FederatedAveraging,
SimulatedBackend, the central Gaussian mechanism), set up to be quick: tensors made once, batches
sliced once, one thread a process, no evaluation after the first round of all (pfl always evaluates
that one; it is a warm-up). Fused SGD, foreach SGD and a tuned malloc were tried: no gain.

Not the same as ours, by pfl's design: the cohort has a fixed size and is drawn with replacement; a
client's batches come in the same order at each epoch."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler, get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly

from benchmarks.peer import forget_peak, serve
from benchmarks.torch_net import Net, to_tensors, use_one_thread
from benchmarks.workloads import Workload, load

NEVER = 1 << 62


class Network(Net):
    """With `metrics`, as pfl asks for it beside `loss`."""

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """What pfl evaluates."""
        return {"loss": Weighted(self.loss(inputs, labels).item() * len(labels), len(labels))}


class Stopwatch(TrainingProcessCallback):
    """The wall-clock seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:  # noqa: ARG002
        self._last = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self,
        aggregate_metrics: Any,  # noqa: ARG002
        model: Any,  # noqa: ARG002
        *,
        central_iteration: int,  # noqa: ARG002
    ) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now
        return False, Metrics()


class Program:
    """The workload in pfl's terms: clients as tensors, model, algorithm, backend."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        pixels, labels = load(workload)
        forget_peak()
        pairs = zip(*to_tensors(workload.network, pixels, labels), strict=True)
        self.clients = [PyTorchTensorDataset(pair) for pair in pairs]
        self.network = Network(workload.network)
        server = torch.optim.SGD(self.network.parameters(), lr=1.0)
        self.model = PyTorchModel(self.network, torch.optim.SGD, server)
        self.training = NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.local_step,
            local_batch_size=workload.batch,
        )
        self.algorithm = FederatedAveraging()
        self.rounds = 0
        if workload.noise_multiplier:
            noise = GaussianMechanism(workload.clip_norm, workload.noise_multiplier)
            sampler = get_user_sampler("random", range(workload.clients))
            self.backend = self._backend(sampler, noise)
        else:
            sampler = MinimizeReuseUserSampler(list(range(workload.clients)))
            self.backend = self._backend(sampler, NormClippingOnly(2, workload.clip_norm))

    def run(self, rounds: int) -> list[float]:
        """Time rounds from the initial weights."""
        self.network.set_weights(self.workload.network.initial_weights())
        self.rounds += rounds  # pfl's algorithm counts on from one run to the next
        watch = Stopwatch()
        self.algorithm.run(
            self._parameters(self.rounds),
            self.backend,
            self.model,
            self.training,
            callbacks=[watch],
            send_metrics_to_platform=False,
        )
        return watch.seconds

    def mean_update(self) -> np.ndarray:
        """Of all clients, from the initial weights."""
        (context,), model, _ = self.algorithm.get_next_central_contexts(
            self.model, 1, self._parameters(2), self.training
        )  # iteration 1, as pfl evaluates at iteration 0
        update, _ = self.backend.gather_results(model, self.algorithm, central_context=context)
        update.average()
        names = dict(self.network.named_parameters())
        return self.network.to_vector([dict(update.items())[name] for name in names])

    def _backend(self, sampler: Any, mechanism: Any) -> SimulatedBackend:
        clients = FederatedDataset(self.clients.__getitem__, sampler)
        return SimulatedBackend(clients, clients, [CentrallyAppliedPrivacyMechanism(mechanism)])

    def _parameters(self, rounds: int) -> NNAlgorithmParams:
        return NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=self.workload.cohort,
            val_cohort_size=0,
        )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")  # pfl 0.6 uses names that torch and asyncio deprecate
    use_one_thread()
    np.random.seed(0)  # noqa: NPY002 - pfl draws from numpy's global state, alike in each process
    serve(Program)

"""One process of the peer: pfl-research 0.6 with PyTorch, in `.venv-pfl`. Started by `peer.Peer`.

The round is pfl's own (FederatedAveraging, SimulatedBackend, the central Gaussian mechanism),
set up to be quick: tensors made once, batches sliced once, one thread a process, no evaluation
after round 0 (pfl always evaluates that one; it is a warm-up) and no metrics beyond those that pfl
computes by itself (norms, clipped fraction, signal-to-noise). Fused SGD, foreach SGD and a tuned
malloc were tried: no gain could be told from the machine's noise.

Not the same as ours, by pfl's design:
* the cohort has a fixed size and is drawn with replacement; ours is a Poisson sample;
* a client's batches come in the same order at each epoch; they are not shuffled.

Commands come on stdin as JSON lines, and each is answered with one JSON line on stdout:
  ["run", 5]                                times 5 rounds from the initial weights
  ["check", "out.npy", [0, 7], null, null]  writes the mean clipped update of these clients, without
                                            noise; last, where they are not the usual ones, an .npy
                                            of weights to start from and a clip norm
  ["quit"]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
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

from benchmarks import data

WARM_UP_ROUNDS = 2
NEVER = 1 << 62


class Perceptron(torch.nn.Module):
    """784-200-10 with a ReLU; `loss` and `metrics` as pfl asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*sizes) for sizes in data.LAYERS)
        self._flat = tuple(self.parameters())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        linear = torch.nn.functional.linear  # past the modules' hooks: 4% off a round of W1
        weight, bias, last_weight, last_bias = self._flat
        return linear(torch.relu(linear(inputs, weight, bias)), last_weight, last_bias)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
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

    def __init__(self, workload: data.Workload) -> None:
        self.workload = workload
        pixels, labels = data.load(workload)
        inputs = torch.from_numpy(pixels).to(torch.float32).div_(255)
        targets = torch.from_numpy(labels).to(torch.int64)
        self.clients = [PyTorchTensorDataset(pair) for pair in zip(inputs, targets, strict=True)]
        network = Perceptron()
        self.model = PyTorchModel(
            network,
            torch.optim.SGD,
            torch.optim.SGD(network.parameters(), lr=workload.server_step),
        )
        self.training = NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.local_step,
            local_batch_size=workload.batch,
        )
        self.algorithm = FederatedAveraging()
        self.backend = self._backend(
            get_user_sampler("random", range(workload.clients)),
            GaussianMechanism(workload.clip_norm, workload.noise_multiplier),
        )
        self.rounds = 0

    def run(self, rounds: int) -> dict[str, Any]:
        """Time `rounds` rounds from the initial weights."""
        self._set_weights(data.initial_weights())
        self.rounds += rounds  # pfl's algorithm counts on from one run to the next
        watch, busy_s = Stopwatch(), time.process_time()
        self.algorithm.run(
            self._parameters(self.rounds, self.workload.cohort),
            self.backend,
            self.model,
            self.training,
            callbacks=[watch],
            send_metrics_to_platform=False,
        )
        return {
            "rounds": rounds,
            "cpu_s": round((time.process_time() - busy_s) / rounds, 5),
            "median_s": statistics.median(watch.seconds),
            "seconds": [round(seconds, 5) for seconds in watch.seconds],
            "finite": bool(np.isfinite(self._weights()).all()),
        }

    def check(
        self, out: str, clients: list[int], weights: str | None, clip_norm: float | None
    ) -> dict[str, Any]:
        """Write the mean clipped update of the clients, by the timed program without its noise."""
        self._set_weights(data.initial_weights() if weights is None else np.load(weights))
        clip = NormClippingOnly(2, clip_norm or self.workload.clip_norm)
        backend = self._backend(MinimizeReuseUserSampler(clients), clip)
        algorithm = FederatedAveraging()
        # Iteration 1, as pfl evaluates at iteration 0.
        (context,), model, _ = algorithm.get_next_central_contexts(
            self.model, 1, self._parameters(2, len(clients)), self.training
        )
        update, metrics = backend.gather_results(model, algorithm, central_context=context)
        update.average()
        mean = to_flat({name: tensor.numpy() for name, tensor in update.items()})
        if rank() == 0:
            np.save(out, mean)
        shown = {str(name): value for name, value in metrics.to_simple_dict().items()}
        return {
            "out": out,
            "clients": len(clients),
            "norm": float(np.linalg.norm(mean)),
            "clipped": float(shown["Central DP | fraction of clipped norms"]),
        }

    def _backend(self, sampler: Any, mechanism: Any) -> SimulatedBackend:
        clients = FederatedDataset(self.clients.__getitem__, sampler)
        return SimulatedBackend(clients, clients, [CentrallyAppliedPrivacyMechanism(mechanism)])

    def _parameters(self, rounds: int, cohort: int) -> NNAlgorithmParams:
        return NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=cohort,
            val_cohort_size=0,
        )

    def _weights(self) -> np.ndarray:
        named = self.model.variable_map.items()
        return to_flat({name: tensor.detach().numpy() for name, tensor in named})

    def _set_weights(self, flat: np.ndarray) -> None:
        for name, array in from_flat(flat).items():
            self.model.variable_map[name].data.copy_(torch.from_numpy(array))


def to_flat(named: dict[str, np.ndarray]) -> np.ndarray:
    """The flat layout of `data.split` from torch's arrays, whose weights are [out, in]."""
    count = len(data.LAYERS)
    return data.join(
        [(named[f"layers.{i}.weight"].T, named[f"layers.{i}.bias"]) for i in range(count)]
    )


def from_flat(flat: np.ndarray) -> dict[str, np.ndarray]:
    """Torch's arrays, by parameter name, from the flat layout: the inverse of `to_flat`."""
    named = {}
    for i, (weight, bias) in enumerate(data.split(flat)):
        named[f"layers.{i}.weight"] = np.ascontiguousarray(weight.T)
        named[f"layers.{i}.bias"] = bias
    return named


def rank() -> int:
    """This process's place among the peer's processes."""
    return int(os.environ.get("PFL_WORKER_RANK", 0))


def serve(workload: data.Workload) -> None:
    """Warm up, say so, and answer commands until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers

    def answer(**fields: Any) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**fields, "peak_rss_mb": round(peak)}), file=answers, flush=True)

    program = Program(workload)
    program.run(WARM_UP_ROUNDS)
    answer(ready=True, torch=torch.__version__)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "quit":
            break
        answer(**{"run": program.run, "check": program.check}[command](*arguments))


def main() -> None:
    warnings.filterwarnings("ignore")  # pfl 0.6 uses names that torch and asyncio deprecate
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as XLA does
    np.random.seed(0)  # noqa: NPY002 - pfl draws from numpy's global state, alike in each process
    serve(data.WORKLOADS[sys.argv[1]])


if __name__ == "__main__":
    main()

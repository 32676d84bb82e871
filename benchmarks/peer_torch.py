"""Peer: a plain loop in PyTorch, as one would write it; in several processes with torch.distributed
(gloo), each with a share of the cohort. The cohort has a fixed size."""

from __future__ import annotations

import os
import time

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.peer import forget_peak, serve
from benchmarks.torch_net import Net, to_tensors, train_client, use_one_thread
from benchmarks.workloads import Workload, load

RANK, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Program:
    """The workload as tensors, and the loop."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        pixels, labels = load(workload)
        forget_peak()
        self.inputs, self.labels = to_tensors(workload.network, pixels, labels)
        self.net = Net(workload.network)
        self.rng = np.random.default_rng(0)  # alike in each process: they agree on the cohort

    def run(self, rounds: int) -> list[float]:
        """Time rounds from the initial weights."""
        self.net.set_weights(self.workload.network.initial_weights())
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            cohort = self.rng.choice(self.workload.clients, self.workload.cohort, replace=False)
            server = [weight.detach().clone() for weight in self.net.flat]
            mean = self.round(server, cohort)
            with torch.no_grad():
                torch._foreach_copy_(self.net.flat, torch._foreach_add(server, mean))
            seconds.append(time.perf_counter() - began)
        return seconds

    def mean_update(self) -> np.ndarray:
        """Of all clients, from the initial weights."""
        server = [weight.detach().clone() for weight in self.net.flat]
        return self.net.to_vector(self.round(server, np.arange(self.workload.clients)))

    @torch.no_grad()
    def round(self, server: list[torch.Tensor], cohort: np.ndarray) -> list[torch.Tensor]:
        """The mean clipped update of the cohort, with noise on the sum once."""
        work = self.workload
        total = [torch.zeros_like(weight) for weight in server]
        for client in cohort[RANK::PROCESSES].tolist():
            torch._foreach_copy_(self.net.flat, server)
            with torch.enable_grad():
                update = train_client(self.net, self.inputs[client], self.labels[client], work)
            torch._foreach_add_(total, update)
        if PROCESSES > 1:
            for part in total:
                dist.all_reduce(part)
        std = work.noise_multiplier * work.clip_norm
        if std:
            generator = torch.Generator().manual_seed(int(self.rng.integers(1 << 62)))
            noise = [torch.randn(part.shape, generator=generator) for part in total]
            torch._foreach_add_(total, noise, alpha=std)
        torch._foreach_div_(total, float(len(cohort)))
        return total


if __name__ == "__main__":
    use_one_thread()
    if PROCESSES > 1:
        dist.init_process_group("gloo")
    serve(Program)

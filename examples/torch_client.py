"""A federation's client in PyTorch: your own model and data, through an adapter of three lines.

    pip install "locks-fl[flower]" torch
    locks federation client --server HOST:8000 --ca ca.pem --key me.key \\
        --policy policy.toml --ledger ledger.sqlite --update torch_client:update --new-ledger

The server sends a flat model and gets a flat update; it never learns what is in between. Clipping,
noise, the ledger and the budget are the guard's, whatever this file does.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# 28 x 28 pixels to ten digits: the flat order is weight then bias, as in the model "softmax" of the
# experiment on the server, so that both may be mixed in one federation
model = torch.nn.Linear(784, 10)
data = np.load(os.environ.get("MY_DATA", "data.npz"))
records = torch.tensor(data["features"].reshape(len(data["labels"]), -1) / 255.0).float()
labels = torch.tensor(data["labels"]).long()


def train() -> None:
    """Your own training: here one epoch of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.randperm(len(labels)).split(32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(records[batch]), labels[batch]).backward()
        optimizer.step()


def update(weights: np.ndarray, _round: int) -> np.ndarray:
    """The adapter: the model in, the update out. The server steps against it."""
    vector_to_parameters(torch.tensor(weights), model.parameters())
    train()
    return weights - parameters_to_vector(model.parameters()).detach().numpy()


update.parameters = sum(p.numel() for p in model.parameters())  # another size is refused, unpaid
update.model = "softmax"

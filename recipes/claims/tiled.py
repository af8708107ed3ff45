"""One contrastive loss with and without its matrix of scores."""

import gc
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from trainkit.recipes.data.retrieval import RetrievalData
from trainkit.recipes.encoders import DualEncoder

from trainkit.losses import InfoNCELoss

__all__ = ["train"]

TEMPERATURE = 0.05
SHOWN = 2
"""Points of the loss curve that are given after the first step, evenly spaced."""


def train(
    seed: int,
    block_size: int | None,
    steps: int = 100,
    batch_size: int = 1024,
    dim: int = 64,
    lr: float = 1e-3,
    rows: int = 4096,
) -> dict[str, float]:
    """Train a dual encoder on Python's docstrings, after one step of the loss alone on ``rows`` random embeddings.

    A ``block_size`` of None stands for the loss in plain torch.

    Returns:
        ``loss at step S`` for points of the curve, and ``memory MiB``: how far the memory of this process rises in
        the step of the loss alone, forward and backward, above what it held before.
    """
    torch.manual_seed(seed)
    loss_fn = dense if block_size is None else InfoNCELoss(temperature=TEMPERATURE, block_size=block_size)
    told = {"memory MiB": _extra_mebibytes(loss_fn, rows, dim)}
    data = RetrievalData(batch_size=batch_size, seed=seed)
    encoder = DualEncoder(dim=dim, hidden=dim, token_dropout=0.0)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr)
    corpus, draw = data.corpus, torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        chosen = torch.randperm(len(corpus.splits.train), generator=draw)[:batch_size].tolist()
        batch = corpus.batch([corpus.splits.train[i] for i in chosen])
        loss = loss_fn(encoder.query(batch["query"]), encoder.key(batch["key"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % (steps // SHOWN) == 0:
            told[f"loss at step {step}"] = loss.item()
    return told


def dense(query: Tensor, key: Tensor) -> Tensor:
    """InfoNCE as plain torch computes it."""
    return F.cross_entropy(query @ key.T / TEMPERATURE, torch.arange(len(query)))


def _extra_mebibytes(loss_fn: Callable[[Tensor, Tensor], Tensor], rows: int, dim: int) -> float:
    query, key = (F.normalize(torch.randn(rows, dim), dim=1).requires_grad_() for _ in range(2))
    # A small step first: what libraries take when they are loaded is no memory of the loss.
    loss_fn(query[:8], key[:8]).backward()
    gc.collect()
    exact = False
    with suppress(OSError):
        # Linux forgets the peak so far.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        exact = True
    before = _status("VmRSS") if exact else _peak()
    loss_fn(query, key).backward()
    return ((_status("VmHWM") if exact else _peak()) - before) / 1024


def _status(key: str) -> float:
    """A line of the process's status, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(key))


def _peak() -> float:
    """Peak since the start of the process, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)

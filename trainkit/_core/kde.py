"""Kernel regression on the simplex: what was seen at similar probabilities, each row left out of its own estimate."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["bandwidth_likelihoods", "bandwidths", "leave_one_out", "select_bandwidth"]

CHUNK = 2**21
"""Entries of the kernel matrix that exist at once."""

CLAMP = 1e-6
"""Distance from 0 and 1 at which a logarithm is taken: a kernel has no density beyond."""


def bandwidths(device: torch.device | None = None) -> Tensor:
    """Bandwidths that are tried, ascending, (20,)."""
    small = torch.logspace(-5, -1, 15, dtype=torch.float64)
    return torch.cat([small, torch.linspace(0.2, 1, 5, dtype=torch.float64)]).to(device)


def _logs(probs: Tensor) -> Tensor:
    """Logarithms; a row with an entry at an end of [0, 1] is moved off it and sums to one again."""
    clamped = probs.clamp(CLAMP, 1 - CLAMP)
    # Rows inside are taken as they are, so that derivatives are those of free entries.
    moved = (clamped != probs).any(1, keepdim=True)
    return torch.where(moved, clamped / clamped.sum(1, keepdim=True), probs).log()


def _norms(probs: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Log of the integral of each unnormalised kernel, (N,)."""
    alpha = probs / bandwidth + 1
    return torch.lgamma(alpha).sum(1) - torch.lgamma(alpha.sum(1))


def _log_kernel(logs: Tensor, probs: Tensor, bandwidth: float | Tensor, offset: Tensor, start: int) -> Tensor:
    """Log of weighted kernels around all rows, at the rows from ``start`` on; minus infinity at a row's own."""
    scores = logs @ (probs / bandwidth).T + offset
    rows = torch.arange(start, start + len(logs), device=logs.device)
    return scores.masked_fill(rows.unsqueeze(1) == torch.arange(len(probs), device=logs.device), -torch.inf)


def _chunks(count: int, chunk: int | None) -> range:
    """Where blocks of rows of the kernel matrix begin."""
    return range(0, count, chunk or max(1, CHUNK // max(count, 1)))


def leave_one_out(
    probs: Tensor,
    target: Tensor,
    bandwidth: float | Tensor,
    weight: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""Mean of the other targets at each row, weighted by the kernel around each of them, (N, T).

    The kernel around row j is the density of a Dirichlet distribution, of a Beta distribution for two classes:
    :math:`\log k_{ij} = \sum_k \frac{p_{jk}}{h} \log p_{ik} - \log B(p_j / h + 1)`. Means are softmaxes over j, so that
    nothing underflows. The kernel matrix exists in blocks of rows, also in the backward pass, which computes each
    block again.

    Args:
        probs: (N, K), in the precision that is computed in; two rows or more.
        target: What is averaged, (N, T).
        bandwidth: Width h of the kernels.
        weight: Weight of each row as one of the others, (N,), above zero; ones if None.
        chunk: Rows of a block; about 2^21 entries if None.
    """
    logs, offset = _logs(probs), -_norms(probs, bandwidth)
    if weight is not None:
        offset = offset + weight.log()

    def block(start: int, rows: Tensor, probs: Tensor, offset: Tensor, target: Tensor) -> Tensor:
        return _log_kernel(rows, probs, bandwidth, offset, start).softmax(1) @ target

    starts = _chunks(len(probs), chunk)
    if len(starts) <= 1 or not (torch.is_grad_enabled() and any(t.requires_grad for t in (probs, target))):
        parts = [block(s, logs[s : s + starts.step], probs, offset, target) for s in starts]
    else:
        parts = [
            checkpoint(
                block,
                s,
                logs[s : s + starts.step],
                probs,
                offset,
                target,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for s in starts
        ]
    return torch.cat(parts)


@torch.no_grad()
def bandwidth_likelihoods(probs: Tensor, weight: Tensor | None = None, chunk: int | None = None) -> Tensor:
    """Log-likelihood of all rows, each given the others, under each of :func:`bandwidths`, (20,).

    Args:
        probs: (N, K), two rows or more.
        weight: Weight of each row, (N,), above zero; ones if None.
        chunk: Rows of a block of the kernel matrix; about 2^21 entries if None.
    """
    logs, w = _logs(probs), torch.ones_like(probs[:, 0]) if weight is None else weight
    starts = _chunks(len(probs), chunk)
    others = (w.sum() - w).log()
    likelihoods = []
    for bandwidth in bandwidths(probs.device).to(probs.dtype):
        offset = w.log() - _norms(probs, bandwidth)
        blocks = [_log_kernel(logs[s : s + starts.step], probs, bandwidth, offset, s).logsumexp(1) for s in starts]
        likelihoods.append((w * (torch.cat(blocks) - others)).sum())
    return torch.stack(likelihoods)


def select_bandwidth(probs: Tensor, weight: Tensor | None = None, chunk: int | None = None) -> Tensor:
    """The likeliest of :func:`bandwidths`; the largest of equally likely ones. Arguments as for the likelihoods."""
    likelihood = bandwidth_likelihoods(probs, weight, chunk)
    best = (likelihood == likelihood.max()).nonzero()[-1, 0]
    return bandwidths(probs.device).to(probs.dtype)[best]

"""Rows of a validation that are kept for a fit, chosen by a hash of their number: alike on any number of ranks."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trainkit._core.checks import reject
from trainkit._core.seeds import mixed
from trainkit.distributed import all_reduce_sum, gather_rows

__all__ = ["HeldOut", "HeldOutRows"]

DIMENSIONS = 6
"""Most dimensions of a tensor that ranks without rows are told of."""


class HeldOut(NamedTuple):
    """Rows of this rank; the mapping has ``logits``, ``target`` and, if any rank has weights, ``weight``.

    Args:
        fit: Rows to fit to.
        score: Rows to judge the fit on.
        fit_rows: Number of rows to fit to on all ranks.
        kept: Rows that were kept, on all ranks.
        seen: Rows that were seen, on all ranks.
    """

    fit: dict[str, Tensor]
    score: dict[str, Tensor]
    fit_rows: int
    kept: int
    seen: int


class HeldOutRows:
    """Collects the rows of one rank, on the CPU and in fp32.

    Args:
        owner: Class that errors name.
        holdout: Share of the rows that the fit doesn't see.
        max_rows: Rows of all ranks that are kept at most.
        rank: This rank.
        ranks: Number of ranks.
    """

    def __init__(self, owner: str, holdout: float, max_rows: int, rank: int = 0, ranks: int = 1) -> None:
        self.owner = owner
        self.holdout = holdout
        self.max_rows = max_rows
        self.rank, self.ranks = rank, ranks
        self.seen = 0
        self.weighted = False
        self.parts: list[dict[str, Tensor]] = []

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Add a batch of ``logits``, ``target`` and perhaps ``weight`` and ``index``."""
        logits, target = tensors["logits"], tensors["target"]
        rows = len(logits) if logits.dim() else 0
        index = tensors.get("index")
        if index is None:
            index = self.rank + self.ranks * torch.arange(self.seen, self.seen + rows)
        elif index.is_floating_point() or index.shape != (rows,):
            reject(self.owner, "index", f"hold {rows} integers, one for each row of logits", index)
        weight = tensors.get("weight")
        self.weighted |= weight is not None
        part = {
            "logits": logits.float(),
            "target": target.float() if target.is_floating_point() else target.long(),
            "weight": torch.ones(rows) if weight is None else weight.float(),
            "index": index.long(),
        }
        for name, value in part.items():
            before = self.parts[0][name] if self.parts else value
            if value.dim() == 0 or len(value) != rows or value.shape[1:] != before.shape[1:]:
                reject(self.owner, name, f"have shape {(rows, *before.shape[1:])}, as logits and batches before", value)
        self.parts.append({name: value.cpu() for name, value in part.items()})
        self.seen += rows
        if sum(len(p["index"]) for p in self.parts) > 2 * self.max_rows:
            whole = self._whole()
            kept = mixed(whole["index"]).argsort()[: self.max_rows]
            self.parts = [{name: value[kept] for name, value in whole.items()}]

    def _whole(self) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}

    def finish(self, device: torch.device) -> HeldOut | None:
        """Split what was collected; None if no rank has rows. Every rank takes part."""
        header = torch.tensor([self._header()], device=device)
        (headers,), _ = gather_rows(header, call=self.owner)
        told = [h for h in headers.tolist() if h[0]]
        if not told:
            return None
        rows = self._whole() if self.parts else _empty(told[0])
        if not any(h[1] for h in told):
            del rows["weight"]
        (indices,), sizes = gather_rows(rows["index"].to(device), call=self.owner)
        seen = int(all_reduce_sum(torch.tensor(self.seen, device=device), call=self.owner))
        kept = self._kept(indices.cpu())
        first = int(sizes[: self.rank].sum())
        own = kept[first : first + len(rows["index"])]
        to_score = _share(indices.cpu()) < self.holdout
        fit_rows = int((kept & ~to_score).sum())
        index = rows.pop("index")
        score = _share(index) < self.holdout

        def taken(chosen: Tensor) -> dict[str, Tensor]:
            return {name: value[chosen].to(device) for name, value in rows.items()}

        return HeldOut(taken(own & ~score), taken(own & score), fit_rows, int(kept.sum()), seen)

    def _kept(self, indices: Tensor) -> Tensor:
        """Of rows that came twice the first, and of these the ones with the smallest hashes."""
        # Equal indices have equal hashes, and only they have.
        order = mixed(indices).argsort(stable=True)
        ordered = indices[order]
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        kept = torch.zeros_like(first)
        kept[order[first][: self.max_rows]] = True
        return kept

    def _header(self) -> list[int]:
        """Whether there are rows, whether they have weights, and what logits and targets look like."""
        if not self.parts:
            return [0] * (3 + 2 * DIMENSIONS)
        part = self.parts[0]
        shapes = [*part["logits"].shape], [*part["target"].shape]
        padded = [n for shape in shapes for n in [len(shape), *shape[1:]] + [0] * (DIMENSIONS - len(shape))]
        return [1, int(self.weighted), int(part["target"].is_floating_point()), *padded]


def _empty(header: list[int]) -> dict[str, Tensor]:
    """No rows, of the form that the header of another rank tells."""
    logits, target = header[3 : 3 + DIMENSIONS], header[3 + DIMENSIONS :]
    return {
        "logits": torch.zeros(0, *logits[1 : logits[0]]),
        "target": torch.zeros(0, *target[1 : target[0]], dtype=torch.float32 if header[2] else torch.int64),
        "weight": torch.zeros(0),
        "index": torch.zeros(0, dtype=torch.int64),
    }


def _share(index: Tensor) -> Tensor:
    """A number in [0, 1) for each row, unrelated to the hash that rows are kept by."""
    return (mixed(mixed(index)) >> 11 & (1 << 53) - 1).double() / 2**53

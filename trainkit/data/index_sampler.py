"""The rows of each batch, dealt to the ranks in turn, in an order that seed and epoch alone decide."""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from trainkit._core.checks import check_flag, check_integer, reject
from trainkit._core.seeds import derive_seed
from trainkit.distributed import state

__all__ = ["IndexSampler"]

CHUNK = 2**16
"""Indices that are turned into Python numbers at a time; a whole epoch of them would take nine times their memory."""


class IndexSampler(DistributedSampler[Any]):
    r"""Indices in batch order: with W ranks, rank r takes rows r::W of each batch that one process would see.

    Use it in place of ``DistributedSampler`` and of ``shuffle=True``, so that a run sees the same batches on one
    process and on many, and after a resume; :class:`ResumableLoader` makes one by itself.

    Args:
        dataset: The rows; only their number counts.
        batch_size: Rows of the whole batch, of all ranks together.
        num_replicas: Number of ranks, W; None asks the process group each time an epoch starts.
        rank: This rank, r; given together with ``num_replicas``.
        shuffle: Draw a new order each epoch; otherwise rows come as they stand.
        seed: Start of the orders, >= 0.
        drop_last: Leave out a last batch that is smaller than the others.
        even: Give every rank the same number of rows, as training needs; False leaves no row out, for evaluation,
            where a rank may have one row more than the others.

    Example:
        >>> from trainkit.data import IndexSampler
        >>> [list(IndexSampler(range(10), 4, num_replicas=2, rank=rank, shuffle=False)) for rank in range(2)]
        [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]

    Note:
        ``batch_size`` must be a multiple of the number of ranks. Rows are never repeated: of a smaller last batch the
        remaining rows that W does not divide are left out if ``even``, fewer than W. A loader takes ``batch_size / W``
        of the indices at a time. ``set_epoch`` picks the order, as in torch; no global generator is read.
        ``state_dict`` counts the rows that were handed out, which is ahead of training if the loader has workers:
        :class:`ResumableLoader` counts what the loop was given. Lightning leaves the sampler in place, since it is a
        ``DistributedSampler``.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        even: bool = True,
    ) -> None:
        owner = type(self).__name__
        check_integer(owner, "batch_size", batch_size, minimum=1)
        check_integer(owner, "seed", seed, minimum=0)
        check_flag(owner, shuffle=shuffle, drop_last=drop_last, even=even)
        self.even = even
        self.batch_size = batch_size
        self._given = num_replicas is not None
        if num_replicas is not None:
            check_integer(owner, "num_replicas", num_replicas, minimum=1)
        if rank is not None:
            check_integer(owner, "rank", rank, minimum=0)
        if (rank is None) is self._given or (rank or 0) >= (num_replicas or 1):
            reject(owner, "rank", f"be below num_replicas={num_replicas}, or both None", rank)
        rows: Any = dataset
        # The base asks for a process group where it is given no ranks; a sampler may be made before there is one.
        super().__init__(rows, num_replicas or 1, rank or 0, shuffle, seed, drop_last)
        self._start = self._position = 0
        self.join()

    def join(self) -> None:
        """Take number of ranks and rank from the process group, unless they were given.

        Raises:
            ValueError: If the ranks don't divide ``batch_size``.
        """
        if not self._given:
            self.num_replicas, self.rank = state.world_size(), state.rank()
        if self.batch_size % self.num_replicas:
            reject(type(self).__name__, "batch_size", f"be divisible by {self.num_replicas} ranks", self.batch_size)
        rows = len(self._rows)
        step = self.batch_size if self.drop_last else self.num_replicas if self.even else 1
        self.total_size = rows - rows % step
        self.num_samples = len(range(self.rank, self.total_size, self.num_replicas))

    @property
    def _rows(self) -> Sized:
        rows: Sized = self.dataset  # type: ignore[assignment]  # torch says Dataset, which need have no length
        return rows

    def __len__(self) -> int:
        self.join()
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        self.join()
        start, self._start = self._start, 0
        self._position = start
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive_seed("order", self.seed, self.epoch))
            order = torch.randperm(len(self._rows), generator=generator)
        else:
            order = torch.arange(len(self._rows))
        for chunk in order[self.rank : self.total_size : self.num_replicas][start:].split(CHUNK):
            for index in chunk.tolist():
                self._position += 1
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Pick the order of ``epoch``; a position, also one that was loaded, holds for its own epoch only."""
        if epoch != self.epoch:
            self._start = self._position = 0
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Epoch, and the number of its rows that all ranks were given so far."""
        return {"epoch": self.epoch, "position": self._position * self.num_replicas}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go on where the state was taken, on any number of ranks: the next iteration starts there."""
        self.epoch = state_dict["epoch"]
        self._start = self._position = state_dict["position"] // self.num_replicas

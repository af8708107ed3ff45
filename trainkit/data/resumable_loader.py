"""A loader that goes on in the middle of an epoch, with the rows and the random numbers of an uninterrupted run."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from trainkit._core.checks import check_flag, check_integer, reject
from trainkit._core.seeds import derive_seed, seeded
from trainkit.data.index_sampler import IndexSampler

__all__ = ["ResumableLoader"]


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` whose position in the epoch lies in its ``state_dict``, which Lightning saves and loads.

    Use it in place of ``DataLoader`` for training, with :class:`~trainkit.callbacks.StepSeed`: a run that was killed
    goes on in mid-epoch and ends with the weights of one that was not. On W ranks each takes ``batch_size / W`` rows.

    Args:
        dataset: Rows by index.
        batch_size: Rows of the whole batch, of all ranks together.
        shuffle: Draw a new order each epoch, from ``seed`` and the epoch.
        sampler: Replaces :class:`IndexSampler`; another ``DistributedSampler`` with a ``batch_size``, the same one.
            The order is then its own affair.
        seed: Start of the order and of the random numbers that are drawn while rows are loaded, >= 0.
        drop_last: Leave out a last batch that is smaller than the others.
        num_workers: Processes that load; 0 loads in this one.
        collate_fn: Makes a batch of a list of rows; None for torch's default.
        pin_memory: Put batches into pinned memory.
        timeout: Seconds to wait for a worker; 0 for no limit.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: How workers are started, as ``"spawn"``; None for the default.
        prefetch_factor: Batches that each worker loads in advance; None for torch's default.
        persistent_workers: Keep the workers from epoch to epoch.

    Example:
        >>> from trainkit.data import ResumableLoader
        >>> loader = ResumableLoader(range(6), batch_size=2)
        >>> iterator = iter(loader)
        >>> next(iterator).tolist()
        [0, 1]
        >>> resumed = ResumableLoader(range(6), batch_size=2)
        >>> resumed.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in resumed]
        [[2, 3], [4, 5]]

    Note:
        The position is the number of batches that the loop was given, whatever workers fetched in advance. A state
        that was loaded stands above the epoch that the sampler is told, which Lightning miscounts after some resumes;
        :meth:`set_epoch` stands above both.
        Loading seeds the global generators of Python, NumPy and torch for each batch from seed, epoch, rank and the
        number of the batch, and puts them back: augmentation is the same after a resume and with any number of
        workers, while generators that a data set holds itself are not seeded. Nothing is loaded before the first
        batch is asked for. In a worker, ``get_worker_info().dataset`` is a wrapper, whose ``dataset`` is the given
        one. A state of another batch size or data set is refused in mid-epoch. Lightning can't put another sampler in,
        as it does for ``overfit_batches`` and in ``predict``: give it a plain loader there.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: DistributedSampler[Any] | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        owner = type(self).__name__
        check_integer(owner, "batch_size", batch_size, minimum=1)
        check_integer(owner, "seed", seed, minimum=0)
        check_flag(owner, shuffle=shuffle, drop_last=drop_last)
        if isinstance(dataset, IterableDataset):
            reject(owner, "dataset", "give its rows by index", dataset, TypeError)
        if sampler is None:
            sampler = IndexSampler(dataset, batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
        else:
            self._check_sampler(sampler, batch_size)
        options: dict[str, Any] = {
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        super().__init__(
            dataset,
            batch_size,
            sampler=sampler,
            drop_last=drop_last,
            collate_fn=collate_fn or default_collate,
            **options,
        )
        self.seed = seed
        self.shuffle = shuffle
        self._batches = _Batches(sampler, batch_size, seed)
        seeds_and_indices: Any = self._batches
        # Rows and batches go through a loader of their own, so that attributes of this one are what the user gave.
        self._loader: DataLoader[Any] = DataLoader(
            _SeededRows(dataset, collate_fn or default_collate),
            batch_sampler=seeds_and_indices,
            collate_fn=_as_is,
            **options,
        )
        self._epoch = self._position = self._ahead = self._named = 0
        self._resuming = False

    def _check_sampler(self, sampler: Any, batch_size: int) -> None:
        owner = type(self).__name__
        if not isinstance(sampler, DistributedSampler) or not hasattr(sampler, "batch_size"):
            reject(owner, "sampler", "be a DistributedSampler with a batch_size", sampler, TypeError)
        if sampler.batch_size != batch_size:
            reject(owner, "batch_size", f"be that of the sampler, {sampler.batch_size}", batch_size)

    def __len__(self) -> int:
        return -(-len(self._batches.sampler) // self._batches.rows_of_rank())

    def __iter__(self) -> Any:
        # Lightning makes the iterator before it names the epoch, so that workers would start on another one's rows:
        # nothing happens before the first batch is asked for.
        sampler = self._batches.sampler
        epoch, position = self._place()
        if sampler.epoch != self._named:
            self._ahead = max(0, sampler.epoch - epoch)
        sampler.set_epoch(epoch)
        self._epoch = self._named = epoch
        self._position = self._batches.start = position if self._resuming else 0
        self._resuming = False
        with seeded(derive_seed("workers", self.seed, epoch)):
            batches = iter(self._loader)
        for batch in batches:
            self._position += 1
            yield batch

    def _place(self) -> tuple[int, int]:
        """Epoch, and number of its batches that were given; by now the sampler may have been told another epoch.

        Resumed at the end of an epoch, Lightning may name the next one too high by one, and all that follow.
        """
        told = self._batches.sampler.epoch
        if told == self._named:
            return self._epoch, self._position
        if self._resuming:
            return self._epoch + 1, 0
        return (told - self._ahead if told > self._named else told), 0

    def set_epoch(self, epoch: int) -> None:
        """Pick the order of ``epoch``; a position, also one that was loaded, holds for its own epoch only."""
        if epoch != self._place()[0]:
            self._go_to(epoch)

    def _go_to(self, epoch: int, position: int = 0, ahead: int = 0) -> None:
        self._epoch, self._position, self._ahead = epoch, position, ahead
        self._named = epoch + ahead
        self._resuming = position > 0
        self._batches.sampler.set_epoch(self._named)

    def state_dict(self) -> dict[str, int]:
        """Where the loop is, and what must be the same when batches are skipped.

        ``epoch`` and ``position``, the number of its batches that the loop was given; ``ahead``, by how much the epochs
        that the sampler is told are too high; ``batch_size`` and the number of ``rows``.
        """
        epoch, position = self._place()
        rows: Any = self.dataset
        return {
            "epoch": epoch,
            "position": position,
            "ahead": self._ahead,
            "batch_size": self._batches.batch_size,
            "rows": len(rows),
        }

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go on where the state was taken: the next iteration starts there.

        Raises:
            ValueError: If it was taken within an epoch of other batches.
        """
        mine = self.state_dict()
        for name, argument in {"batch_size": "batch_size", "rows": "number of rows"}.items():
            if state_dict["position"] and state_dict[name] != mine[name]:
                saved = state_dict[name]
                reject(
                    type(self).__name__, argument, f"be {saved} as in the checkpoint, taken in mid-epoch", mine[name]
                )
        self._go_to(state_dict["epoch"], state_dict["position"], state_dict["ahead"])


class _Batches:
    """Seed and indices of each batch of this rank, from a start on; the start holds for one epoch."""

    def __init__(self, sampler: Any, batch_size: int, seed: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.seed = seed
        self.start = 0

    def rows_of_rank(self) -> int:
        # The ranks of a sampler may come to be known only when it is asked for its length.
        len(self.sampler)
        return self.batch_size // int(self.sampler.num_replicas)

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        number, self.start = self.start, 0
        rows = self.rows_of_rank()
        indices = islice(iter(self.sampler), number * rows, None)
        while batch := list(islice(indices, rows)):
            yield derive_seed("rows", self.seed, self.sampler.epoch, self.sampler.rank, number), batch
            number += 1


class _SeededRows(Dataset[Any]):
    """Whole batches by seed and indices: what loading and collating draw comes from the seed."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __getitems__(self, batch: tuple[int, list[int]]) -> Any:
        seed, indices = batch
        together = getattr(self.dataset, "__getitems__", None)
        with seeded(seed):
            return self.collate_fn(together(indices) if together else [self.dataset[i] for i in indices])


def _as_is(batch: Any) -> Any:
    return batch

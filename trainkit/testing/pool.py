"""A pool of processes that are the ranks of one gloo group, started once and used for many short calls."""

import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.multiprocessing as mp

__all__ = ["Pool", "RankError"]


class RankError(RuntimeError):
    """A call failed on one or more ranks.

    Args:
        call: What was called.
        errors: Type and message by rank.
        traces: Tracebacks by rank.
    """

    def __init__(self, call: str, errors: dict[int, str], traces: dict[int, str]) -> None:
        self.errors = errors
        self.traces = traces
        listed = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items()))
        super().__init__(f"{call} failed on {listed}")


def _serve(rank: int, ranks: int, store: str, seconds: float, pipe: Connection) -> None:
    """Join the group and answer calls until the pipe closes."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds)
    )
    pipe.send((True, os.getpid()))
    with suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((True, function(*args)))
            except Exception as error:
                pipe.send((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    dist.destroy_process_group()


def _ping() -> int:
    import torch.distributed as dist

    one = torch.ones(())
    dist.all_reduce(one)
    return int(one)


class Pool:
    """Processes that each hold one rank of a gloo group.

    Args:
        ranks: Number of processes.
        seconds: Time-out of a call and of the group's collectives. A call that exceeds it is stopped and named, and
            the next call finds a new pool.

    Example:
        >>> from trainkit.testing import Pool
        >>> import operator
        >>> with Pool(2) as pool:
        ...     pool.run(operator.add, [(1, 2), (3, 4)])
        [3, 7]
    """

    def __init__(self, ranks: int = 2, seconds: float = 30.0) -> None:
        self.ranks = ranks
        self.seconds = seconds
        self.calls = 0
        self.process_ids: list[int] = []
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Start the processes; the first call does it by itself."""
        if self._processes:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="trainkit-pool-")
        store = str(Path(self._folder.name) / "store")
        context = mp.get_context("spawn")
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.ranks, store, self.seconds, theirs), daemon=True, name=f"rank {rank}"
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self.process_ids = self._collect("start of the pool", 4 * self.seconds)

    def run(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``function`` on every rank at the same time.

        Args:
            function: Importable by name in another process.
            args: Arguments for each rank.

        Returns:
            The results by rank.

        Raises:
            RankError: If the call failed, did not end in time or ended a process; says what came on which rank.
        """
        if len(args) != self.ranks:
            raise ValueError(f"Pool: args must have {self.ranks} entries, one for each rank, got {len(args)}")
        self.start()
        self.calls += 1
        name = getattr(function, "__qualname__", repr(function))
        for pipe, own in zip(self._pipes, args, strict=True):
            pipe.send((function, own))
        try:
            return self._collect(name, 2 * self.seconds)
        except RankError:
            self._mend()
            raise

    def _collect(self, call: str, seconds: float) -> list[Any]:
        """Answers of all ranks; stops the pool if a rank is silent."""
        results: list[Any] = [None] * self.ranks
        errors: dict[int, str] = {}
        traces: dict[int, str] = {}
        waiting = dict(zip(self._pipes, range(self.ranks), strict=True))
        while waiting:
            ready = wait(list(waiting), timeout=seconds)
            if not ready:
                errors.update(dict.fromkeys(waiting.values(), f"no answer in {seconds:g} s"))
                self.stop()
                break
            for pipe in [p for p in waiting if p in ready]:
                rank = waiting.pop(pipe)
                try:
                    fine, answer = pipe.recv()
                except (EOFError, ConnectionError):
                    fine, answer = False, ("the process ended", "")
                if fine:
                    results[rank] = answer
                else:
                    errors[rank], traces[rank] = answer
        if errors:
            raise RankError(call, errors, traces)
        return results

    def _mend(self) -> None:
        """After a failed call, keep the pool only if its group still works."""
        if not self._processes:
            return
        try:
            for pipe in self._pipes:
                pipe.send((_ping, ()))
            if self._collect("ping", 5.0) != [self.ranks] * self.ranks:
                self.stop()
        except (RankError, OSError):
            self.stop()

    def stop(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> "Pool":  # noqa: PYI034 - Self is in typing only from Python 3.11 on
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

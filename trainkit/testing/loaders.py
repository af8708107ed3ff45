"""Properties of loaders that can be resumed: which batches they give, and where they go on after a stop."""

import copy
import inspect
import io
import random
import sys
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainkit.testing.case import Case
from trainkit.testing.faults import refusal, require
from trainkit.testing.pool import Pool
from trainkit.testing.properties import collect, prop
from trainkit.testing.spec import LoaderSpec

__all__ = ["PROPERTIES", "LoaderCase", "NoisyRows", "build_loader"]

LoaderCase: TypeAlias = Case[LoaderSpec]

BATCH = 4
ROWS = 18


class NoisyRows(Dataset[Tensor]):
    """Row i is i and a share of one from each global generator of random numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        noise = [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: NPY002, S311
        return torch.tensor([index, *noise], dtype=torch.float64)


def build_loader(spec: LoaderSpec, config: Mapping[str, Any], **changes: Any) -> Any:
    """A loader of noisy rows; one that does not take the batch size is given none."""
    usual = {spec.batch_size: BATCH} if spec.batch_size in inspect.signature(spec.cls).parameters else {}
    return spec.cls(NoisyRows(ROWS), **{**usual, **copy.deepcopy(dict(config)), **changes})


def _make(case: LoaderCase, **changes: Any) -> Any:
    return build_loader(case.spec, case.config, **changes)


def _batches(loader: Any, epoch: int | None = None) -> list[Any]:
    if epoch is not None:
        loader.sampler.set_epoch(epoch)
    return [batch.tolist() for batch in loader]


def _rows(batches: list[Any]) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in batches]


def _other_kind(case: LoaderCase) -> str | None:
    """D1 is the fault of a class of another kind; the rest would say it once more."""
    return None if _is_resumable(_make(case)) else "it can't be resumed, see D1"


def _is_resumable(loader: Any) -> bool:
    kind = isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler)
    return kind and hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


@prop("D1", "left alone by Lightning")
def kind(case: LoaderCase) -> None:
    """It is a DataLoader with a DistributedSampler, in whose place Lightning puts no other, and has a state."""
    loader = _make(case)
    require(
        isinstance(loader, DataLoader), "bases of the class", "DataLoader", [b.__name__ for b in type(loader).__mro__]
    )
    sampler = loader.sampler
    require(isinstance(sampler, DistributedSampler), "sampler", "a DistributedSampler", type(sampler).__name__)
    for name in ("state_dict", "load_state_dict"):
        require(hasattr(loader, name), "methods", name, "none")


def _no_reference(case: LoaderCase) -> str | None:
    return _other_kind(case) or (None if case.spec.reference else "there is no reference")


@prop("D2", "reference", needs=_no_reference)
def reference(case: LoaderCase) -> None:
    """The rows of each batch of two epochs are those of the reference, and their number is the length."""
    loader = _make(case)
    for epoch in range(2):
        if case.spec.reference is not None:
            expected = case.spec.reference(rows=ROWS, epoch=epoch, **{case.spec.batch_size: BATCH, **case.config})
            got = _rows(_batches(loader, epoch))
            require(got == expected, f"rows of the batches of epoch {epoch}", expected, got)
            require(len(loader) == len(got), f"length, epoch {epoch}", len(got), len(loader))


def _saved(loader: Any) -> Any:
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _stopped(case: LoaderCase, batches: int, **changes: Any) -> tuple[list[Any], Any]:
    """What epoch 1 gave before the stop, and a new loader with the state that was saved then."""
    loader = _make(case, **changes)
    loader.sampler.set_epoch(1)
    iterator = iter(loader)
    seen = [batch.tolist() for batch in islice(iterator, batches)]
    resumed = _make(case, **changes)
    resumed.load_state_dict(_saved(loader))
    return seen, resumed


@prop("D3", "resume", needs=_other_kind)
def resume(case: LoaderCase) -> None:
    """Stopped after any number of batches, a new loader with the saved state goes on there, then as usual."""
    whole, following = (_rows(_batches(_make(case, num_workers=0), epoch)) for epoch in (1, 2))
    for batches in range(len(whole) + 1):
        seen, resumed = _stopped(case, batches, num_workers=0)
        what = f"rows of the batches of an epoch that stopped after {batches}"
        found = _rows(seen + _batches(resumed))
        require(found == whole, what, whole, found)
        require(
            len(resumed) == len(whole), f"length of the whole epoch, stopped after {batches}", len(whole), len(resumed)
        )
        found = _rows(_batches(resumed, 2))
        require(found == following, f"{what}, in the next epoch", following, found)


@prop("D4", "random numbers", needs=_other_kind)
def random_numbers(case: LoaderCase) -> None:
    """What rows draw is the same after a resume and whatever ran before; global generators are left as they were."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    whole = _batches(_make(case, num_workers=0), 1)
    untouched = torch.equal(torch_state, torch.get_rng_state()) and python_state == random.getstate()
    require(untouched, "global random state after an epoch", "as before", "changed")
    torch.manual_seed(1)
    random.seed(1)
    seen, resumed = _stopped(case, 2, num_workers=0)
    found = seen + _batches(resumed)
    # Another property compares the rows.
    if _rows(found) == _rows(whole):
        require(found == whole, "random numbers of an epoch that stopped after 2 batches", whole, found)
    distinct = {row[1] for batch in whole for row in batch}
    require(len(distinct) == sum(map(len, whole)), "random numbers of the rows", "all different", whole)


@prop("D5", "workers", needs=_other_kind, dear=True)
def workers(case: LoaderCase) -> None:
    """With two workers that fetch ahead, the batches are the same, and the position is that of what was given."""
    whole = _batches(_make(case, num_workers=0), 1)
    seen, resumed = _stopped(case, 1, num_workers=2)
    found = seen + _batches(resumed)
    require(_rows(found) == _rows(whole), "rows of an epoch with 2 workers, stopped after 1 batch", whole, found)


@prop("D6", "errors")
def errors(case: LoaderCase) -> None:
    """The listed bad calls raise an error that names the class."""
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"call with {', '.join(bad.config)}"
        text = refusal(case.spec.cls, partial(_make, case, **bad.config), bad.error, what)
        require(bad.match in text, what, bad.match, text)


def batches_on_rank(cls: type[Any], config: Mapping[str, Any], batch_size: str) -> list[list[int]]:
    """What a rank of the pool runs."""
    spec = LoaderSpec(cls=cls, batch_size=batch_size)
    loader = build_loader(spec, config, num_workers=0)
    return _rows(_batches(loader, 1))


@prop("D7", "ranks", needs=_other_kind, ranks=True)
def ranks(case: LoaderCase, pool: Pool | None) -> None:
    """Rank r gets rows r::W of each batch that one process gets."""
    if pool is None:
        raise ValueError("D7 needs a pool of ranks, got None")
    spec = case.spec
    whole = batches_on_rank(spec.cls, case.config, spec.batch_size)
    for rank, got in enumerate(pool.run(batches_on_rank, [(spec.cls, case.config, spec.batch_size)] * pool.ranks)):
        expected = [b[: len(b) - len(b) % pool.ranks][rank :: pool.ranks] for b in whole]
        require(got == [b for b in expected if b], f"rows of the batches of rank {rank} of {pool.ranks}", expected, got)


PROPERTIES = collect(sys.modules[__name__])

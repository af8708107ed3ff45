"""Properties of samplers: which rows each rank sees, in which order, also after a stop.

A sampler of the whole batch yields single indices in batch order; with W ranks, rank r takes rows r::W of each batch
that one process would see. Where W does not divide a last, smaller batch, its fewer than W remaining rows are left
out, since every rank must make the same number of steps, unless an argument ``even`` says otherwise.
"""

import copy
import inspect
import io
import logging
import pickle
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, DistributedSampler

from trainkit.testing.case import Case
from trainkit.testing.faults import refusal, require
from trainkit.testing.properties import collect, prop
from trainkit.testing.spec import SamplerSpec

__all__ = ["PROPERTIES", "SamplerCase", "build_sampler"]

SamplerCase: TypeAlias = Case[SamplerSpec]

BATCH = 4
LENGTHS = (16, 10, 3)
MANY = 10_000
"""More indices than any sampler yields here; one that does not end is cut off."""


def build_sampler(spec: SamplerSpec, config: Mapping[str, Any], length: int = 16, **changes: Any) -> Any:
    """A sampler over a data set of ``length`` rows, for the only rank unless ``changes`` says otherwise.

    Of batch size, ``num_replicas`` and ``rank`` it is given those that its constructor has.
    """
    usual = {spec.batch_size: BATCH, "num_replicas": 1, "rank": 0}
    known = inspect.signature(spec.cls).parameters
    given = {name: value for name, value in usual.items() if name in known}
    return spec.cls(spec.dataset(length), **{**given, **copy.deepcopy(dict(config)), **changes})


def _batch(case: SamplerCase) -> int:
    return int(case.config.get(case.spec.batch_size, BATCH))


def _even(case: SamplerCase) -> bool:
    return bool(case.setting("even")) if case.has("even") else True


def _worlds(case: SamplerCase) -> list[int]:
    return [w for w in (1, 2, 4) if _batch(case) % w == 0]


def _make(case: SamplerCase, length: int, ranks: int = 1, rank: int = 0, **changes: Any) -> Any:
    return build_sampler(case.spec, case.config, length, num_replicas=ranks, rank=rank, **changes)


def _order(sampler: Any, epoch: int | None = None) -> list[int]:
    if epoch is not None:
        sampler.set_epoch(epoch)
    return [int(i) for i in islice(iter(sampler), MANY)]


def _other_kind(case: SamplerCase) -> str | None:
    """S1 is the fault of a class of another kind; the rest would say it once more."""
    cls, batch_size = case.spec.cls, case.spec.batch_size
    if not issubclass(cls, DistributedSampler):
        return "it is no DistributedSampler, see S1"
    return None if batch_size in inspect.signature(cls).parameters else f"it takes no {batch_size}, see S1"


@prop("S1", "left alone by Lightning")
def kind(case: SamplerCase) -> None:
    """It is a DistributedSampler that takes the batch size and yields Python ints; anything else Lightning wraps."""
    base = issubclass(case.spec.cls, DistributedSampler)
    require(base, "bases of the class", "DistributedSampler", [b.__name__ for b in case.spec.cls.__mro__])
    known = list(inspect.signature(case.spec.cls).parameters)
    require(case.spec.batch_size in known, "arguments of the constructor", case.spec.batch_size, known)
    for index in islice(iter(_make(case, LENGTHS[0])), MANY):
        require(type(index) is int, "what it yields", "an int", f"{type(index).__name__} {index!r}")


@prop("S2", "rows of each rank", needs=_other_kind)
def partition(case: SamplerCase) -> None:
    """Rank r yields rows r::W of each batch that one process sees."""
    for length in LENGTHS:
        whole = _order(_make(case, length))
        for ranks in _worlds(case):
            # Batches start at multiples of W, so the rows r::W of each are the rows r::W of all.
            kept = whole[: len(whole) - len(whole) % ranks] if _even(case) else whole
            for rank in range(ranks):
                got = _order(_make(case, length, ranks, rank))
                what = f"rows of rank {rank} of {ranks}, {length} rows in batches of {_batch(case)}"
                require(got == kept[rank::ranks], what, kept[rank::ranks], got)


@prop("S3", "order from seed and epoch", needs=_other_kind)
def order(case: SamplerCase) -> None:
    """Seed and epoch alone give the order, and change it when shuffling; no global random state is read or changed."""
    length = LENGTHS[0]
    sampler = _make(case, length)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    first = _order(sampler, 0)
    untouched = torch.equal(torch_state, torch.get_rng_state()) and python_state == random.getstate()
    require(untouched, "global random state after an epoch", "as before", "changed")
    torch.manual_seed(1)
    for what, again in {"the same sampler": sampler, "another of the same seed": _make(case, length)}.items():
        found = _order(again, 0)
        require(found == first, f"order of epoch 0 from {what}", first, found)
    if not sampler.shuffle:
        return
    second = _order(sampler, 1)
    require(second != first, "order of epoch 1 when shuffling", "another than in epoch 0", second)
    if case.has("seed"):
        other = _order(_make(case, length, seed=sampler.seed + 1), 0)
        require(other != first, "order from another seed when shuffling", "another", other)


@prop("S4", "length", needs=_other_kind)
def length_of_epoch(case: SamplerCase) -> None:
    """The length is the number of indices it yields, the same on every rank where every rank makes the same steps."""
    for length in LENGTHS:
        for ranks in _worlds(case):
            samplers = [_make(case, length, ranks, rank) for rank in range(ranks)]
            said, yielded = [len(s) for s in samplers], [len(_order(s)) for s in samplers]
            what = f"of {ranks} ranks, {length} rows in batches of {_batch(case)}"
            require(said == yielded, f"lengths {what}", yielded, said)
            same = len(set(yielded)) == 1 or not _even(case)
            require(same, f"numbers of indices {what}", "all equal", yielded)


def _no_state(case: SamplerCase) -> str | None:
    stateful = hasattr(case.spec.cls, "state_dict") and hasattr(case.spec.cls, "load_state_dict")
    return _other_kind(case) or (None if stateful else "it has no state_dict")


@prop("S5", "resume", needs=_no_state)
def resume(case: SamplerCase) -> None:
    """Stopped after some batches, a new sampler with the saved state goes on where it stopped, then as usual."""
    for ranks in _worlds(case):
        steps = _batch(case) // ranks
        whole = _order(_make(case, LENGTHS[0], ranks), 1)
        for batches in range(LENGTHS[0] // _batch(case)):
            stopped = _make(case, LENGTHS[0], ranks)
            stopped.set_epoch(1)
            seen = [int(i) for i in islice(iter(stopped), batches * steps)]
            file = io.BytesIO()
            torch.save(stopped.state_dict(), file)
            file.seek(0)
            resumed = _make(case, LENGTHS[0], ranks)
            resumed.load_state_dict(torch.load(file, weights_only=True))
            if batches % 2:
                # Loops name the epoch again when they go on in it.
                resumed.set_epoch(1)
            what = f"after {batches} batches and a resume, {ranks} ranks"
            found = seen + _order(resumed)
            require(found == whole, f"order of the epoch {what}", whole, found)
            following = _order(_make(case, LENGTHS[0], ranks), 2)
            found = _order(resumed, 2)
            require(found == following, f"order of the next epoch {what}", following, found)


@prop("S6", "copies", needs=_other_kind)
def copies(case: SamplerCase) -> None:
    """Deep copies and pickles go on in the same order."""
    sampler = _make(case, LENGTHS[0])
    sampler.set_epoch(1)
    others = {
        "a deep copy": copy.deepcopy(sampler),
        "a pickle": pickle.loads(pickle.dumps(sampler)),  # noqa: S301 - our own bytes
    }
    expected = _order(sampler)
    for what, other in others.items():
        found = _order(other)
        require(found == expected, f"order of {what}", expected, found)


@prop("S7", "errors", needs=_other_kind)
def errors(case: SamplerCase) -> None:
    """A batch size that the ranks don't divide raises an error with both numbers; so do the listed bad calls."""
    batch, cls = _batch(case), case.spec.cls
    divides = f"batch size {batch} on {batch + 1} ranks"
    text = refusal(cls, partial(build_sampler, case.spec, case.config, num_replicas=batch + 1), ValueError, divides)
    require(str(batch) in text and str(batch + 1) in text, "error", f"a text with {batch} and {batch + 1}", text)
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"call with {', '.join(bad.config)}"
        text = refusal(cls, partial(build_sampler, case.spec, case.config, **bad.config), bad.error, what)
        require(bad.match in text, what, bad.match, text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's advice on loggers and workers is not about the sampler."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _fit(sampler: Any, length: int, batch: int, epochs: int) -> tuple[Any, list[int]]:
    """The sampler that a Lightning fit ended with, and the indices that its training steps saw."""
    from lightning.pytorch import LightningModule, Trainer

    seen: list[int] = []

    class Watch(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            seen.extend(batch.tolist())
            return 0 * self.weight

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows: Any = range(length)
    with _quiet():
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Watch(), DataLoader(rows, batch_size=batch, sampler=sampler))
    loader: Any = trainer.train_dataloader
    return loader.sampler, seen


@prop("S8", "in Lightning", needs=_other_kind, dear=True)
def in_lightning(case: SamplerCase) -> None:
    """Built without ranks, as for one process, it stays in place in a Lightning fit, which sees its order."""
    sampler = build_sampler(case.spec, case.config, num_replicas=None, rank=None)
    expected = [i for epoch in range(2) for i in _order(_make(case, 16), epoch)]
    kept, seen = _fit(sampler, 16, _batch(case), epochs=2)
    require(kept is sampler, "sampler of the loader after a fit", sampler, kept)
    require(seen == expected, "indices that two epochs of a fit saw", expected, seen)


@prop("S9", "small data sets", needs=_other_kind)
def small(case: SamplerCase) -> None:
    """A data set of no row, of one, or smaller than a batch, ends, without repeats.

    A class whose docstring says "with replacement" may repeat.
    """
    replaces = "with replacement" in (inspect.getdoc(case.spec.cls) or "")
    for length in sorted({0, 1, _batch(case) - 1}):
        for ranks in _worlds(case):
            seen = [i for rank in range(ranks) for i in _order(_make(case, length, ranks, rank))]
            what = f"indices of {length} rows on {ranks} ranks"
            require(len(seen) < MANY, what, "an end", f"more than {MANY}")
            require(set(seen) <= set(range(length)), what, f"below {length}", seen)
            require(replaces or len(set(seen)) == len(seen), what, "each at most once", seen)


def _no_reference(case: SamplerCase) -> str | None:
    return _other_kind(case) or (None if case.spec.reference else "there is no reference")


@prop("S10", "reference", needs=_no_reference)
def reference(case: SamplerCase) -> None:
    """On one process the order of two epochs is that of the reference."""
    for length in LENGTHS:
        for epoch in range(2):
            if case.spec.reference is not None:
                config = {case.spec.batch_size: BATCH, **case.config}
                expected, got = (
                    case.spec.reference(rows=length, epoch=epoch, **config),
                    _order(_make(case, length), epoch),
                )
                require(got == expected, f"order of epoch {epoch}, {length} rows", expected, got)


PROPERTIES = collect(sys.modules[__name__])

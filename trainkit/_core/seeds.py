"""Random numbers that a run and its resumed copy share: seeds derived from places in the run, and scopes for them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

__all__ = ["derive_seed", "mixed", "seed_everywhere", "seeded"]


def derive_seed(purpose: str, *places: int) -> int:
    """A seed of 64 bits that depends on every place and on what it is for.

    Sums and products, such as seed + epoch, give one run the numbers of another: epoch 1 of seed 0 those of epoch 0 of
    seed 1.

    Args:
        purpose: Keeps the seeds of one use apart from those of another.
        places: Numbers >= 0, such as seed, rank and step.
    """
    # Two words a number: SeedSequence joins the words of all numbers, so a varying count would make them collide.
    words = [word for place in places for word in (place & 0xFFFFFFFF, place >> 32)]
    sequence = np.random.SeedSequence([int.from_bytes(purpose.encode(), "little"), *words])
    return int(sequence.generate_state(1, np.uint64)[0])


def mixed(values: Tensor) -> Tensor:
    """A permutation of the 64-bit integers under which neighbours are unrelated: the finalizer of SplitMix64."""
    values = values * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        values = (values ^ (values >> shift & (1 << 64 - shift) - 1)) * factor
    return values ^ (values >> 31 & (1 << 33) - 1)


def seed_everywhere(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch, on the CPU and on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - it is the global one that augmentations read
    torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of the CPU inside and put them back as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])

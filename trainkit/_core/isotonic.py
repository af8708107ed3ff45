"""Pooling of adjacent violators: the closest ascending values, and bins of labels whose rates ascend."""

import numpy as np
import numpy.typing as npt

__all__ = ["constrained_blocks", "isotonic", "pool_adjacent_violators"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SHRINKING = 0.8
"""A round over all blocks at once has to leave at most this share of them to be worth another."""


def _pooled_runs(sums: Floats, weight: Floats, size: Integers) -> tuple[Floats, Floats, Integers]:
    """Every run of blocks whose means do not ascend as one block."""
    means = sums / weight
    starts = np.concatenate([[0], np.flatnonzero(means[1:] > means[:-1]) + 1])
    return np.add.reduceat(sums, starts), np.add.reduceat(weight, starts), np.add.reduceat(size, starts)


def pool_adjacent_violators(values: Floats, weight: Floats | None = None) -> tuple[Floats, Integers]:
    """Means and sizes of the blocks of the closest ascending values, in squares and in linear time.

    Args:
        values: (n,), in the order in which they should ascend.
        weight: Weight of each, (n,), above zero; ones if None.

    Returns:
        Means of the blocks, each above the one before, and how many values each holds.
    """
    count = len(values)
    w = np.ones(count) if weight is None else np.asarray(weight, dtype=np.float64)
    sums, size = np.asarray(values, dtype=np.float64) * w, np.ones(count, dtype=np.int64)
    if not count:
        return sums, size
    # Where many neighbours violate the order, rounds over arrays do most of the work and the loop has little left.
    while True:
        before = len(sums)
        sums, w, size = _pooled_runs(sums, w, size)
        if len(sums) == before:
            return sums / w, size
        if len(sums) > SHRINKING * before:
            break
    stack: list[tuple[float, float, int]] = []
    for total, mass, number in zip(sums.tolist(), w.tolist(), size.tolist(), strict=True):
        while stack and stack[-1][0] * mass >= total * stack[-1][1]:
            above = stack.pop()
            total, mass, number = above[0] + total, above[1] + mass, above[2] + number
        stack.append((total, mass, number))
    totals, masses, numbers = zip(*stack, strict=True)
    return np.array(totals) / np.array(masses), np.array(numbers, dtype=np.int64)


def isotonic(values: Floats, weight: Floats | None = None) -> Floats:
    """The closest ascending values, in squares, (n,).

    Args:
        values: (n,), in the order in which they should ascend.
        weight: Weight of each, (n,), above zero; ones if None.
    """
    means, size = pool_adjacent_violators(values, weight)
    return np.repeat(means, size)


def constrained_blocks(
    hits: Integers, count: Integers, n_min: int, n_max: int, *, count_last_twice: bool = False
) -> Integers:
    """Pooling of adjacent violators into blocks of a limited number of labels; how many entries each block holds.

    Neighbours are pooled while they have ``n_min`` labels or fewer together, or where the rate does not ascend from one
    to the next and they have ``n_max`` or fewer. The last ``n_min`` labels are one block, pooled with the one before
    it where both have ``n_max`` or fewer. An entry is never divided, whatever it counts.

    Args:
        hits: Labels that are one, of each entry in the order of its score, (n,).
        count: Labels of each entry, (n,), above zero.
        n_min: Labels that a block should have.
        n_max: Labels that a block may have, if no single entry has more.
        count_last_twice: Pool the last block where twice its labels are ``n_max`` or fewer, as the paper's code does.
    """
    inner = int(np.searchsorted(count.cumsum(), count.sum() - n_min, side="right"))
    if not inner:
        return np.array([len(hits)], dtype=np.int64)
    stack: list[tuple[int, int, int]] = []
    for own_hits, own_count in zip(hits[:inner].tolist(), count[:inner].tolist(), strict=True):
        a, n, size = own_hits, own_count, 1
        while stack:
            a0, n0, size0 = stack[-1]
            descends = a0 * n >= a * n0
            if not (n0 + n <= n_min or (n0 + n <= n_max and descends)):
                break
            stack.pop()
            a, n, size = a0 + a, n0 + n, size0 + size
        stack.append((a, n, size))
    sizes = [size for *_, size in stack]
    last = int(count[inner:].sum())
    if inner < len(hits):
        if (last if count_last_twice else stack[-1][1]) + last <= n_max:
            sizes[-1] += len(hits) - inner
        else:
            sizes.append(len(hits) - inner)
    return np.array(sizes, dtype=np.int64)

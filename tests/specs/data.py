"""Records of samplers and loaders."""

import numpy as np
import torch

from trainkit.data import IndexSampler, ResumableLoader
from trainkit.testing import BadCall, LoaderSpec, SamplerSpec


def drawn(rows, seed, epoch):
    """A permutation from 64 bits that hash the purpose, then seed and epoch as two words of 32 bits each."""
    words = [int.from_bytes(b"order", "little"), seed, 0, epoch, 0]
    (low, high) = np.random.SeedSequence(words).generate_state(2, np.uint32)
    generator = torch.Generator().manual_seed(int(low) + 2**32 * int(high))
    return [int(i) for i in torch.randperm(rows, generator=generator)]


def order(rows, epoch, batch_size, shuffle=True, seed=0, drop_last=False, even=True):
    kept = batch_size * (rows // batch_size) if drop_last else rows
    return (drawn(rows, seed, epoch) if shuffle else list(range(rows)))[:kept]


def batches(rows, epoch, batch_size, shuffle=False, seed=0, drop_last=False, num_workers=0):
    indices = order(rows, epoch, batch_size, shuffle, seed, drop_last)
    found = []
    while indices:
        found.append(indices[:batch_size])
        indices = indices[batch_size:]
    return found


SPECS = (
    SamplerSpec(
        cls=IndexSampler,
        configs=(
            {"batch_size": 4},
            {"batch_size": 4, "shuffle": False},
            {"batch_size": 8, "seed": 3, "drop_last": True},
            {"batch_size": 4, "shuffle": False, "even": False},
        ),
        reference=order,
        errors=(
            BadCall(ValueError, "batch_size must be >= 1, got 0", {"batch_size": 0}),
            BadCall(TypeError, "batch_size must be an integer, got 2.0", {"batch_size": 2.0}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(TypeError, "even must be True or False, got None", {"even": None}),
            BadCall(ValueError, "num_replicas must be >= 1, got 0", {"num_replicas": 0}),
            BadCall(
                ValueError, "rank must be below num_replicas=2, or both None, got 2", {"num_replicas": 2, "rank": 2}
            ),
            BadCall(ValueError, "rank must be below num_replicas=None, or both None, got 0", {"num_replicas": None}),
            BadCall(ValueError, "rank must be below num_replicas=1, or both None, got None", {"rank": None}),
        ),
    ),
    LoaderSpec(
        cls=ResumableLoader,
        configs=(
            {"batch_size": 4},
            {"batch_size": 4, "shuffle": True, "seed": 2},
            {"batch_size": 4, "shuffle": True, "drop_last": True, "num_workers": 2},
        ),
        reference=batches,
        errors=(
            BadCall(ValueError, "batch_size must be >= 1, got 0", {"batch_size": 0}),
            BadCall(ValueError, "seed must be >= 0, got -1", {"seed": -1}),
            BadCall(TypeError, "sampler must be a DistributedSampler with a batch_size", {"sampler": range(4)}),
        ),
    ),
)

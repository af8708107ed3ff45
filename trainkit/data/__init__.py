"""Samplers and loaders that give the same rows on any number of ranks and go on exactly where a run stopped."""

from trainkit.data.index_sampler import *
from trainkit.data.resumable_loader import *

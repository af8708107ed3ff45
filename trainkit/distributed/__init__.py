"""Collectives with exact gradients, ragged shards, rank state and a memory queue that is the same on every rank."""

from trainkit.distributed.collectives import *
from trainkit.distributed.queue import *
from trainkit.distributed.reduction import *
from trainkit.distributed.state import *

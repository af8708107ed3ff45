"""Transforms: the steps that chains of updates are made of."""

from trainkit.optim.transforms.corrections import *
from trainkit.optim.transforms.moments import *

"""Losses: ``nn.Module`` classes with functional forms, exact on any number of ranks."""

from trainkit.losses.classification.focal import *
from trainkit.losses.classification.sigmoid_focal import *
from trainkit.losses.classification.smoothed_cross_entropy import *
from trainkit.losses.combined import *

"""Callbacks for Lightning that attach to any ``LightningModule``."""

from trainkit.callbacks.step_seed import *

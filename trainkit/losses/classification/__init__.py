"""Losses for classification; import them from ``trainkit.losses``."""

"""Contrastive losses; import them from ``trainkit.losses``."""

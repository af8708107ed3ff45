"""Losses on scores whose order matters."""

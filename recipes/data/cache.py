"""Where recipes keep what is computed once."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Folder for what is computed once: $TRAINKIT_CACHE, else trainkit in the user's cache folder."""
    told = os.environ.get("TRAINKIT_CACHE")
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainkit"

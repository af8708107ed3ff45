"""Warnings of a run, noted on their way to where they are shown."""

import warnings
from typing import Any

__all__ = ["WarningLog"]

NOTED = 20


class WarningLog:
    """The first texts that were warned of, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self._before: Any = None
        self._hook: Any = None

    def start(self) -> None:
        """Note what is shown from now on."""
        if self._hook is None:
            self._before, self._hook = warnings.showwarning, self._show
            warnings.showwarning = self._hook

    def stop(self) -> None:
        """Note nothing more; where somebody else came in between, what he put there stays."""
        if warnings.showwarning is self._hook:
            warnings.showwarning = self._before
        self._before = self._hook = None

    def _show(self, message: Any, category: type[Warning], *place: Any) -> None:
        if len(self.texts) < NOTED:
            self.texts[f"{category.__name__}: {message}"] = None
        (self._before or warnings._showwarning_orig)(message, category, *place)  # type: ignore[attr-defined]

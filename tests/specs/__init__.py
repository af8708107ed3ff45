"""Spec records of every part: each module holds a tuple ``SPECS``."""

import importlib
import pkgutil

from trainkit.testing import Spec


def all_specs() -> list[Spec]:
    """The records of all modules in this folder."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return [spec for module in modules for spec in module.SPECS]

"""Parts that are broken on purpose: each fails the one property that it is meant for, and nothing else."""

from dataclasses import dataclass

from trainkit.testing import Spec


@dataclass(frozen=True)
class Broken:
    property: str
    spec: Spec

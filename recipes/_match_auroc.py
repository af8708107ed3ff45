"""The area under the ROC curve of right against wrong keys of a pool."""

import torch
from torch import Tensor

from trainkit.metrics import BinnedPairAUROC

__all__ = ["MatchAUROC"]


class MatchAUROC(BinnedPairAUROC):
    """Area over all pairs of a query and a key of the pool, from their cosines and the place of the right key."""

    def update(self, cosines: Tensor, target: Tensor) -> None:
        places = torch.arange(cosines.shape[1], device=cosines.device)
        # Rounding leaves cosines of like texts a little above one, where they would share a cell with all others.
        super().update(cosines.clamp(-1, 1), places == target.unsqueeze(1))

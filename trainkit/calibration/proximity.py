"""How near inputs are to the training data, in the features of a model."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainkit._core.buffers import ExactBuffers
from trainkit._core.checks import (
    check_flag,
    check_floating,
    check_integer,
    check_same_shape,
    check_values,
    reject,
    values_checked,
)
from trainkit._core.numerics import fp32_region
from trainkit._core.repr import hyper_parameters

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NeighborProximity"]


class NeighborProximity(ExactBuffers):
    r"""Proximity of inputs to the training data: how near the nearest training features are, in (0, 1].

    Use it for :class:`~trainkit.calibration.metrics.ProximityInformedECE` and whatever else treats common and rare
    inputs apart: :meth:`fit` keeps features of the training data, from the last layer but one of a model, and a call
    gives one number an input.

    .. math:: D(x) = \frac{1}{k} \sum_{j \in \mathrm{kNN}(x)} \exp(-\lVert x - x_j \rVert_2)

    Args:
        k: Number of neighbours.
        normalize: Whether features are divided by their norm first.
        bank_size: Most training features that are kept; of more, so many are drawn at random.
        chunk_size: Inputs that are compared at once; of no effect on the value.
        seed: Seed of the draw.
        validate_args: Check that features are finite, and that ids of the bank differ.

    Shape:
        - features: (N, D)
        - ids: (N,), int64, optional
        - output: (N,), in the dtype of the bank or of the input, whichever has more digits

    Example:
        >>> import torch
        >>> from trainkit.calibration import NeighborProximity
        >>> proximity = NeighborProximity(k=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> proximity(torch.tensor([[0.0], [9.0]]))
        tensor([0.6839, 0.0014])
        >>> proximity(torch.tensor([[0.0]]), ids=torch.tensor([0]))
        tensor([0.2088])

    Note:
        As in the paper's code, the mean is taken of exp(-distance); its text has exp of minus the mean distance. The
        search is exact. ``ids`` say which inputs are in the bank themselves: a row is no neighbour of itself. They
        are the positions in what ``fit`` was given unless it was given ids of its own; any other number, such as -1,
        is that of no row. The bank is in the ``state_dict``, which brings
        its size, and keeps its precision under any cast. On several ranks every rank has
        to be given the same features; nothing is gathered. Computes in fp32, or fp64 for fp64 features, also under
        autocast. Without gradients.

    References:
        Xiong et al., "Proximity-Informed Calibration for Deep Neural Networks", NeurIPS 2023. arXiv:2306.04590
    """

    bank: Tensor
    bank_ids: Tensor

    def __init__(
        self,
        k: int = 10,
        normalize: bool = False,
        bank_size: int = 50_000,
        chunk_size: int = 1024,
        seed: int = 0,
        validate_args: bool = True,
    ) -> None:
        super().__init__()
        owner = "NeighborProximity"
        for name, value in {"k": k, "bank_size": bank_size, "chunk_size": chunk_size}.items():
            check_integer(owner, name, value, minimum=1)
        check_integer(owner, "seed", seed, minimum=0)
        if bank_size <= k:
            reject(owner, "bank_size", f"be > {k}, the number of neighbours", bank_size)
        check_flag(owner, normalize=normalize, validate_args=validate_args)
        self.k = k
        self.normalize = normalize
        self.bank_size = bank_size
        self.chunk_size = chunk_size
        self.seed = seed
        self.validate_args = validate_args
        self.register_exact("bank", torch.zeros(0, 0), persistent=True)
        self.register_exact("bank_ids", torch.zeros(0, dtype=torch.int64), persistent=True)

    def extra_repr(self) -> str:
        return hyper_parameters(self)

    @torch.no_grad()
    def fit(self, features: Tensor, ids: Tensor | None = None) -> "Self":
        """Keep training features; those of an earlier fit are replaced.

        Args:
            features: (N, D), more of them than neighbours are asked for.
            ids: Numbers of the rows, all different; their positions if None.

        Returns:
            The module itself.

        Raises:
            ValueError: If there are too few rows, or the inputs break a rule.
        """
        self._check(features, ids)
        if len(features) <= self.k:
            reject("NeighborProximity", "features", f"have more rows than k={self.k}", features)
        if ids is None:
            ids = torch.arange(len(features), device=features.device)
        elif values_checked(self.validate_args) and len(ids.unique()) < len(ids):
            reject("NeighborProximity", "ids", "be all different", ids)
        if len(features) > self.bank_size:
            g = torch.Generator().manual_seed(self.seed)
            drawn = torch.randperm(len(features), generator=g)[: self.bank_size].sort().values
            drawn = drawn.to(features.device)
            features, ids = features[drawn], ids[drawn]
        # Of its own storage, so that the features may change afterwards.
        self.bank, self.bank_ids = self._prepared(features).clone(), ids.clone()
        return self

    @torch.no_grad()
    def forward(self, features: Tensor, *, ids: Tensor | None = None) -> Tensor:
        if not len(self.bank):
            raise RuntimeError("NeighborProximity: fit must be called before forward, or a fitted state_dict be loaded")
        self._check(features, ids)
        if features.shape[1] != self.bank.shape[1]:
            reject("NeighborProximity", "features", f"have shape (N, {self.bank.shape[1]}), as in fit", features)
        return self._proximity(features, ids)

    @fp32_region
    def _proximity(self, features: Tensor, ids: Tensor | None) -> Tensor:
        queries = self._prepared(features)
        dtype = torch.promote_types(queries.dtype, self.bank.dtype)
        queries, bank = queries.to(dtype), self.bank.to(dtype)
        found = []
        for start in range(0, len(queries), self.chunk_size):
            rows = slice(start, start + self.chunk_size)
            found.append(self._of_chunk(queries[rows], bank, None if ids is None else ids[rows]))
        return torch.cat(found) if found else queries.new_zeros(0)

    def _of_chunk(self, queries: Tensor, bank: Tensor, ids: Tensor | None) -> Tensor:
        distances = torch.cdist(queries, bank)
        if ids is not None:
            distances = distances.masked_fill(ids.unsqueeze(1) == self.bank_ids, torch.inf)
        nearest = distances.topk(self.k, largest=False).indices
        # By the product of matrices, small distances have lost their digits.
        apart: Tensor = torch.linalg.vector_norm(queries.unsqueeze(1) - bank[nearest], dim=2)
        return apart.neg().exp().mean(1)

    @fp32_region
    def _prepared(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) if self.normalize else features

    def _check(self, features: Tensor, ids: Tensor | None) -> None:
        owner = "NeighborProximity"
        check_floating(owner, features=features)
        if features.dim() != 2:
            reject(owner, "features", "have shape (N, D)", features)
        check_same_shape(owner, "features", features.shape[:1], ids=ids)
        if ids is not None and ids.dtype != torch.int64:
            reject(owner, "ids", "be int64", ids, TypeError)
        if values_checked(self.validate_args):
            check_values(owner, ("features", "be finite", features, features.isfinite()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("bank", "bank_ids"):
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor):
                setattr(self, name, torch.empty_like(stored, device=self.bank.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

"""A memory of past rows that is the same on every rank."""

import torch
from torch import Tensor, nn

from trainkit._core.checks import check_floating, check_integer, check_same_shape, reject
from trainkit.distributed.collectives import gather_rows

__all__ = ["MemoryQueue"]


class MemoryQueue(nn.Module):
    r"""First-in first-out memory of the last ``size`` rows of the whole batch, with their labels.

    Use it for negatives beyond the batch: compute the loss with :attr:`features`, then call :meth:`enqueue` with the
    new keys. The queue starts empty and counts what it holds; it never offers rows that were not enqueued.

    .. math:: \text{queue} \leftarrow \text{last } S \text{ of } (\text{queue}, x_{1}, \dots, x_{W})

    where :math:`x_r` are the rows of rank r.

    Args:
        size: Number of rows that are kept, S. It need not be a multiple of the batch.
        dim: Number of features of a row, D.

    Shape:
        - embeddings: (N, D) on each rank, N may differ between ranks and may be 0
        - labels: (N,), int64
        - features: (M, D), M <= S the rows enqueued so far
        - feature_labels: (M,)

    Example:
        >>> import torch
        >>> queue = MemoryQueue(size=3, dim=1)
        >>> queue.enqueue(torch.tensor([[1.0], [2.0]]), torch.tensor([7, 8]))
        >>> queue.enqueue(torch.tensor([[3.0], [4.0]]))
        >>> queue.features.flatten().tolist(), queue.feature_labels.tolist()
        ([2.0, 3.0, 4.0], [8, -100, -100])

    Note:
        Rows are stored detached, in fp32 unless the module is cast. Under DDP the rows of all ranks are gathered in
        rank order, so every rank holds the same queue. All buffers are in ``state_dict``: a resumed run goes on with
        the same memory. Rows enqueued without labels get -100, the usual ``ignore_index``.

    References:
        He, Fan, Wu, Xie and Girshick, "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020.
        arXiv:1911.05722
    """

    memory: Tensor
    memory_labels: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        check_integer("MemoryQueue", "size", size, minimum=1)
        check_integer("MemoryQueue", "dim", dim, minimum=1)
        self.size = size
        self.dim = dim
        self.register_buffer("memory", torch.zeros(size, dim))
        self.register_buffer("memory_labels", torch.full((size,), -100))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"size={self.size}, dim={self.dim}"

    def __len__(self) -> int:
        return int(self.filled)

    @property
    def features(self) -> Tensor:
        """The rows, oldest first, (M, D); a copy, so that a later :meth:`enqueue` does not disturb a backward."""
        return self.memory[: len(self)].clone()

    @property
    def feature_labels(self) -> Tensor:
        """Labels of the rows, (M,); a copy."""
        return self.memory_labels[: len(self)].clone()

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor | None = None) -> None:
        """Add the rows of all ranks, in rank order, and forget the oldest beyond ``size``.

        Args:
            embeddings: (N, D), the rows of this rank.
            labels: (N,) int64; given on every rank or on none.

        Raises:
            ValueError: If the shapes don't fit.
            TypeError: If ``embeddings`` is not floating or ``labels`` not int64.
            RuntimeError: On every rank, if the ranks disagree on what they enqueue.
        """
        check_floating("MemoryQueue", embeddings=embeddings)
        if embeddings.dim() != 2 or embeddings.shape[1] != self.dim:
            reject("MemoryQueue", "embeddings", f"have shape (N, {self.dim})", embeddings)
        check_same_shape("MemoryQueue", "embeddings", embeddings.shape[:1], labels=labels)
        if labels is not None and labels.dtype != torch.int64:
            reject("MemoryQueue", "labels", "be int64", labels, TypeError)
        call = "MemoryQueue.enqueue"
        rows = embeddings.detach().to(self.memory.dtype)
        if labels is None:
            (rows,), _ = gather_rows(rows, call=call)
            labels = self.memory_labels.new_full((len(rows),), -100)
        else:
            (rows, labels), _ = gather_rows(rows, labels.detach(), call=call)
        held = len(self)
        kept = torch.cat([self.memory[:held], rows])[-self.size :]
        kept_labels = torch.cat([self.memory_labels[:held], labels])[-self.size :]
        self.memory[: len(kept)] = kept
        self.memory_labels[: len(kept)] = kept_labels
        self.filled.fill_(len(kept))

"""Parameter groups of a model: matrices, and what is none."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from trainkit._core.checks import check_number, reject

__all__ = ["param_groups"]


def _without_decay(model: nn.Module) -> set[str]:
    """Names of the parameters that modules say weight decay would harm."""
    found = set()
    for prefix, module in model.named_modules():
        told = getattr(module, "no_weight_decay", None)
        if callable(told):
            found |= {f"{prefix}.{name}" if prefix else name for name in told()}
    return found


def _output_head(model: nn.Module) -> set[int]:
    """Parameters of embeddings, their tied heads included."""
    embeddings = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    return {id(p) for module in embeddings for p in module.parameters(recurse=False)}


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def param_groups(
    model: nn.Module, *, weight_decay: float = 0.0, vector_weight_decay: float = 0.0, head: str | None = None
) -> list[dict[str, Any]]:
    """Groups for an optimizer: weight matrices with decay, and everything else, by default without.

    Matrices are parameters of two or more dimensions, but for embeddings, heads tied to them, the output ``head`` and
    what a module's ``no_weight_decay()`` names. The groups carry the names of their parameters, and ``use_matrix``,
    which optimizers read that treat matrices differently.

    Args:
        model: The model, losses with parameters included.
        weight_decay: Decay of the matrices.
        vector_weight_decay: Decay of everything else.
        head: Name of the output layer, whose weight counts as a vector; None if there is none of its own.

    Returns:
        At most two groups; one without parameters is left out.
    """
    check_number("param_groups", "weight_decay", weight_decay, minimum=0)
    check_number("param_groups", "vector_weight_decay", vector_weight_decay, minimum=0)
    named = dict(_named(model))
    if not named:
        reject("param_groups", "model", "have parameters that require gradients", type(model).__name__)
    vectors, embedded = _without_decay(model), _output_head(model)
    if head is not None:
        own = {name for name in named if name == head or name.startswith(f"{head}.")}
        if not own:
            reject("param_groups", "head", f"name a module or parameter of {type(model).__name__}", head)
        vectors |= own
    matrices = [(k, p) for k, p in named.items() if p.dim() >= 2 and k not in vectors and id(p) not in embedded]
    chosen = {k for k, _ in matrices}
    rest = [(k, p) for k, p in named.items() if k not in chosen]
    groups = [
        {"params": matrices, "weight_decay": weight_decay, "use_matrix": True},
        {"params": rest, "weight_decay": vector_weight_decay, "use_matrix": False},
    ]
    return [group for group in groups if group["params"]]

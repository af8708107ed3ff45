"""Calls for the golden records of the losses."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.losses import DualFocalLoss, FocalLoss, SigmoidFocalLoss, SmoothedCrossEntropyLoss


def tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Whole numbers as int64, everything else as float64."""
    made = {k: torch.tensor(v) for k, v in inputs.items()}
    return {k: torch.tensor(inputs[k], dtype=torch.float64) if v.is_floating_point() else v for k, v in made.items()}


def evaluate(module: nn.Module, inputs: Mapping[str, Any], *wanted: str) -> dict[str, Any]:
    """Value of a call and the gradients of its sum with respect to the inputs that are ``wanted``."""
    given = tensors(inputs)
    for name in wanted:
        given[name].requires_grad_()
    value = module.double()(**given)
    value.sum().backward()
    return {"value": value.detach(), "grad": {name: given[name].grad for name in wanted}}


def focal(record):
    p = record["params"]
    return evaluate(FocalLoss(gamma=p["gamma"], alpha=p["alpha"], reduction=p["reduction"]), record["inputs"], "logits")


def dual_focal(record):
    p = record["params"]
    return evaluate(DualFocalLoss(gamma=p["gamma"], reduction=p["reduction"]), record["inputs"], "logits")


def sigmoid_focal(record):
    p = record["params"]
    module = SigmoidFocalLoss(gamma=p["gamma"], alpha=p["alpha"], reduction=p["reduction"])
    return evaluate(module, record["inputs"], "logits")


def smoothed(mode):
    def run(record):
        p = record["params"]
        module = SmoothedCrossEntropyLoss(
            label_smoothing=p.get("smoothing", 0.0),
            smoothing_mode=mode,
            class_weight=p.get("weight"),
            reduction=p["reduction"],
        )
        return evaluate(module, record["inputs"], "logits")

    return run


NAMES = {
    "FocalLoss softmax": focal,
    "FocalLoss softmax saturated": focal,
    "DualFocalLoss": dual_focal,
    "SigmoidFocalLoss": sigmoid_focal,
    "SigmoidFocalLoss extreme logits, gamma 0.5": sigmoid_focal,
    "LabelSmoothingCrossEntropy(q=(1-e)onehot+e/K)": smoothed("inclusive"),
    "LabelSmoothing, Mueller/official-MDCA variant q=e/(K-1) off-target": smoothed("exclusive"),
    "weighted CE, weighted mean divides by sum of weights": smoothed("inclusive"),
}

"""Calls for the golden records of the ranking losses."""

import torch

from trainkit.losses import BPRLoss, PairwiseAUCLoss


def leaves(record):
    return [torch.tensor(record["inputs"][k], dtype=torch.float64, requires_grad=True) for k in ("pos", "neg")]


def outcome(value, positive, negative):
    value.sum().backward()
    return {"value": value.detach(), "grad": {"pos": positive.grad, "neg": negative.grad}}


def mann_whitney_scores(record):
    positive, negative = leaves(record)
    scores = torch.cat([positive, negative])
    target = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
    module = PairwiseAUCLoss(temperature=record["params"]["temperature"])
    return outcome(module(scores, target), positive, negative)


def bpr(record):
    positive, negative = leaves(record)
    module = BPRLoss(reduction=record["params"]["reduction"])
    return outcome(module(positive, negative), positive, negative)


NAMES = {"MannWhitneyLoss.scores": mann_whitney_scores, "BPRLoss": bpr}

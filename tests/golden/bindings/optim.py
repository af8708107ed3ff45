"""Calls for the golden records of optimizers: the parameters after each step."""

import torch

from tests.golden.bind import flat
from trainkit.optim import MARS, AdaBelief, Chain, LaProp, Lion, MVNGrad, adamw
from trainkit.optim.transforms import BiasCorrect, CautiousUpdate, Decay, Divide, Momentum, SecondMoment

RENAMED = {"mars_type": "variant"}
LEFT_OUT = {"is_approx"}


def cautious_adamw(params, cautious_update, mask_clamp, **hyper):
    cautious = CautiousUpdate(cautious_update, mask_clamp)
    return Chain(params, [SecondMoment(), Momentum(), Divide(), BiasCorrect(), cautious, Decay()], **hyper)


def cautious_lion(params, mask_clamp, **hyper):
    optimizer = Lion(params, **hyper)
    # The record holds the usual value, which is not for the user of Lion to set.
    assert mask_clamp == CautiousUpdate().mask_clamp
    return optimizer


def trajectory(make):
    """A call that gives the parameters of all steps, in order."""

    def run(record):
        inputs = record["inputs"]
        names = [name.removesuffix("0") for name in inputs if name.endswith("0")]
        params = [torch.tensor(inputs[f"{name}0"], dtype=torch.float64).requires_grad_() for name in names]
        hyper = {RENAMED.get(k, k): v for k, v in record["params"].items() if k not in LEFT_OUT}
        optimizer = make(params, **hyper)
        value = []
        for gradients in zip(*(inputs[f"grad_{name}"] for name in names), strict=True):
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
            value.append([param.tolist() for param in params])
        return {"value": flat(value)}

    return run


NAMES = {
    "AdaBelief": trajectory(AdaBelief),
    "AdamW": trajectory(adamw),
    "AdamW cautious update": trajectory(cautious_adamw),
    "AdamW+CWD": trajectory(adamw),
    "LaProp": trajectory(LaProp),
    "Lion": trajectory(Lion),
    "Lion cautious update": trajectory(cautious_lion),
    "Lion+CWD": trajectory(Lion),
    "MARS-adamw": trajectory(MARS),
    "MARS-lion": trajectory(MARS),
    "MVNGrad": trajectory(MVNGrad),
}

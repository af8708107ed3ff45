"""Spec records of the optimizers, with references in numpy."""

import numpy as np
import torch

from tests.golden.bind import golden
from trainkit.optim import MARS, AdaBelief, Chain, LaProp, Lion, MVNGrad
from trainkit.optim.transforms import (
    BiasCorrect,
    Centre,
    CentredSecondMoment,
    Correct,
    Decay,
    Divide,
    Momentum,
    SecondMoment,
)
from trainkit.testing import BadCall, OptimizerSpec


def apply(p, u, g, c):
    """The end that all share: cautious mask, decay, step."""
    if c["cautious_update"]:
        mask = (u * g > 0).astype(float)
        u = u * mask / max(mask.mean() if mask.size else 0.0, 1e-3)
    decayed = (u * p >= 0) * p if c["cautious_weight_decay"] else p
    return p - c["lr"] * (u + c["weight_decay"] * decayed)


def reference(defaults, start, update):
    """A trajectory: ``update(p, g, state, t, c)`` gives the parameter after the step."""
    common = {"cautious_update": False, "cautious_weight_decay": False, "maximize": False, "weight_decay": 0.0}

    def run(parameters, gradients, config):
        c = common | defaults | config
        states = [{"t": 0} | {name: np.zeros_like(p) for name in start} for p in parameters]
        trajectory = []
        for step in gradients:
            moved = []
            for p, g, state in zip(parameters, step, states, strict=True):
                if g is None:
                    moved.append(p)
                    continue
                state["t"] += 1
                moved.append(update(p, -g if c["maximize"] else g, state, state["t"], c))
            parameters = moved
            trajectory.append(moved)
        return trajectory

    return run


def variance(g, s, t, c):
    """Denominator of MVN-Grad, with its average ``m`` and variance ``v`` in the state."""
    b1, b2 = c["betas"]
    bc = b1 if c["beta_centre"] is None else c["beta_centre"]
    old = s["m"]
    s["m"] = bc * old + (1 - bc) * g
    before = old / (1 - bc ** (t - 1)) if t > 1 else 0 * old
    centre = {"post": s["m"], "pre": old, "pre_hat": before, "none": 0 * old}[c["centre"]]
    s["v"] = b2 * s["v"] + (1 - b2) * (g - centre) ** 2 + c["eps_s"]
    corrected = s["v"] / (1 - b2**t) if c["bias_correction"] else s["v"]
    return np.sqrt(corrected + c["eps"]) if c["eps_mode"] == "inside" else np.sqrt(corrected) + c["eps"]


def mvn_grad(p, g, s, t, c):
    b1 = c["betas"][0]
    z = g / variance(g, s, t, c)
    if c["max_ratio"] is not None:
        z = np.clip(z, -c["max_ratio"], c["max_ratio"])
    s["u"] = b1 * s["u"] + (1 - b1) * z
    return apply(p, s["u"] / (1 - b1**t) if c["bias_correction"] else s["u"], g, c)


MVN = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "eps_s": 0.0,
    "centre": "post",
    "eps_mode": "outside",
    "bias_correction": True,
    "beta_centre": None,
    "max_ratio": None,
}


def ada_belief(p, g, s, t, c):
    b1, b2 = c["betas"]
    s["m"] = b1 * s["m"] + (1 - b1) * g
    s["v"] = b2 * s["v"] + (1 - b2) * (g - s["m"]) ** 2 + c["eps"]
    u = s["m"] / (1 - b1**t)
    longest = 2 / (1 - b2) - 1
    length = longest - 2 * t * b2**t / (1 - b2**t)
    if not c["rectify"]:
        u = u / (np.sqrt(s["v"] / (1 - b2**t)) + c["eps"])
    elif length >= 5:
        ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        u = np.sqrt(ratio) * u / (np.sqrt(s["v"] / (1 - b2**t)) + c["eps"])
    return apply(p, u, g, c)


def la_prop(p, g, s, t, c):
    b1, b2 = c["betas"]
    s["v"] = b2 * s["v"] + (1 - b2) * g**2
    s["mean"] = b2 * s["mean"] + (1 - b2) * g
    v = s["v"] - s["mean"] ** 2 if c["centered"] and t > 10 else s["v"]
    z = g / (np.sqrt(np.maximum(v, 0) / (1 - b2**t)) + c["eps"])
    if c["lr_in_momentum"]:
        s["m"] = b1 * s["m"] + (1 - b1) * c["lr"] * z
        s["rate"] = b1 * s["rate"] + (1 - b1) * c["lr"]
        return apply(p, s["m"] / s["rate"], g, c)
    s["m"] = b1 * s["m"] + (1 - b1) * z
    return apply(p, s["m"] / (1 - b1**t), g, c)


def lion(p, g, s, t, c):
    b1, b2 = c["betas"]
    u = np.sign(b1 * s["m"] + (1 - b1) * g)
    s["m"] = b2 * s["m"] + (1 - b2) * g
    return apply(p, u, g, c)


def corrected(g, s, t, c):
    """Gradient of MARS."""
    b1 = c["betas"][0]
    last = g if t == 1 and c["first_step"] == "zero_diff" else s["last"]
    found = g + c["gamma"] * b1 / (1 - b1) * (g - last)
    s["last"] = g
    return found / max(1.0, np.linalg.norm(found) / c["clip"]) if c["clip"] is not None else found


def adam(x, s, t, betas, eps, amsgrad=False):
    b1, b2 = betas
    s["m"] = b1 * s["m"] + (1 - b1) * x
    s["v"] = b2 * s["v"] + (1 - b2) * x**2
    s["largest"] = np.maximum(s["largest"], s["v"]) if amsgrad else s["v"]
    return s["m"] / (1 - b1**t) / (np.sqrt(s["largest"] / (1 - b2**t)) + eps)


def mars(p, g, s, t, c):
    if p.ndim < 2 and not c["optimize_1d"]:
        own = c | {"lr": c["lr_1d"], "weight_decay": c["weight_decay_1d"]}
        return apply(p, adam(g, s, t, c["betas_1d"], c["eps"], c["amsgrad"]), g, own)
    x = corrected(g, s, t, c)
    if c["variant"] == "lion":
        s["m"] = c["betas"][0] * s["m"] + (1 - c["betas"][0]) * x
        return apply(p, np.sign(s["m"]), g, c)
    return apply(p, adam(x, s, t, c["betas"], c["eps"], c["amsgrad"]), g, c)


MARS_DEFAULTS = {
    "lr": 3e-3,
    "betas": (0.95, 0.99),
    "eps": 1e-8,
    "gamma": 0.025,
    "variant": "adamw",
    "clip": 1.0,
    "first_step": "zero_diff",
    "amsgrad": False,
    "optimize_1d": False,
    "lr_1d": 3e-3,
    "betas_1d": (0.9, 0.95),
    "weight_decay_1d": 0.1,
}


def chain(p, g, s, t, c):
    """The chains of the configurations below, told apart by their first transform."""
    if isinstance(c["transforms"][0], Correct):
        x = corrected(g, s, t, {"betas": c["betas"], "gamma": 0.05, "clip": 0.5, "first_step": "zero_diff"})
        b1 = c["betas"][0]
        own = MVN | {k: c[k] for k in ("betas", "eps")}
        s["u"] = b1 * s["u"] + (1 - b1) * x / variance(x, s, t, own)
        return apply(p, s["u"] / (1 - b1**t), g, c | {"cautious_weight_decay": True})
    if isinstance(c["transforms"][0], CentredSecondMoment):
        divisor = variance(g, s, t, MVN | {k: c[k] for k in ("betas", "eps")})
        return apply(p, s["m"] / (1 - c["betas"][0] ** t) / divisor, g, c)
    return apply(p, adam(g, s, t, c["betas"], c["eps"]), g, c)


USUAL = (
    BadCall(ValueError, "impl must be one of 'auto', 'loop', 'foreach', 'compiled', got 'fused'", {"impl": "fused"}),
    BadCall(ValueError, "rounding must be one of 'nearest', 'stochastic', got 'up'", {"rounding": "up"}),
    BadCall(
        TypeError, "state_dtype must be None or a floating point dtype, got torch.int8", {"state_dtype": torch.int8}
    ),
)

SPECS = (
    OptimizerSpec(
        cls=MVNGrad,
        found_inf=True,
        reference=reference(MVN, ("m", "v", "u"), mvn_grad),
        configs=(
            {},
            {"centre": "pre", "eps_s": 1e-8, "weight_decay": 0.1, "betas": (0.8, 0.99)},
            {
                "centre": "pre_hat",
                "eps_mode": "inside",
                "eps": 1e-3,
                "cautious_weight_decay": True,
                "weight_decay": 0.5,
            },
            {"centre": "none", "bias_correction": False, "cautious_update": True},
            {"lr": 1e-2, "beta_centre": 0.5, "max_ratio": 2.0, "maximize": True},
        ),
        golden=golden("MVNGrad"),
        errors=(
            *USUAL,
            BadCall(ValueError, "centre must be one of", {"centre": "mean"}),
            BadCall(ValueError, "eps_s must be >= 0, got -1.0", {"eps_s": -1.0}),
            BadCall(ValueError, "beta_centre must be >= 0 and < 1, got 1.0", {"beta_centre": 1.0}),
            BadCall(ValueError, "max_ratio must be > 0, got 0", {"max_ratio": 0}),
        ),
        seeds=("004.96",),
    ),
    OptimizerSpec(
        cls=AdaBelief,
        found_inf=True,
        reference=reference(
            {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-16, "rectify": False}, ("m", "v"), ada_belief
        ),
        configs=(
            {},
            {"rectify": True, "weight_decay": 0.1, "betas": (0.9, 0.99)},
            {"eps": 1e-8, "cautious_update": True, "cautious_weight_decay": True, "weight_decay": 0.3},
        ),
        golden=golden("AdaBelief"),
        errors=(
            BadCall(TypeError, "rectify must be True or False, got 1", {"rectify": 1}),
            BadCall(ValueError, "weight_decay must be >= 0, got -0.1", {"weight_decay": -0.1}),
        ),
    ),
    OptimizerSpec(
        cls=LaProp,
        found_inf=True,
        reference=reference(
            {"lr": 4e-4, "betas": (0.9, 0.999), "eps": 1e-15, "centered": False, "lr_in_momentum": False},
            ("m", "v", "mean", "rate"),
            la_prop,
        ),
        configs=(
            {},
            {"centered": True, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8},
            {"lr_in_momentum": True, "lr": 1e-2, "cautious_weight_decay": True, "weight_decay": 0.3},
        ),
        golden=golden("LaProp"),
        errors=(
            BadCall(TypeError, "centered must be True or False, got 'yes'", {"centered": "yes"}),
            BadCall(TypeError, "lr_in_momentum must be True or False, got None", {"lr_in_momentum": None}),
        ),
    ),
    OptimizerSpec(
        cls=Lion,
        found_inf=True,
        reference=reference({"lr": 1e-4, "betas": (0.9, 0.99)}, ("m",), lion),
        configs=(
            {},
            {"lr": 1e-2, "weight_decay": 0.3, "betas": (0.5, 0.9)},
            {"lr": 1e-2, "weight_decay": 1.0, "cautious_update": True, "cautious_weight_decay": True},
        ),
        golden=golden("Lion", "Lion+CWD", "Lion cautious update"),
        errors=(
            BadCall(TypeError, "betas must be two numbers, got 0.9", {"betas": 0.9}),
            BadCall(TypeError, "cautious_update must be True or False, got 0", {"cautious_update": 0}),
        ),
    ),
    OptimizerSpec(
        cls=MARS,
        found_inf=True,
        reference=reference(MARS_DEFAULTS, ("m", "v", "last", "largest"), mars),
        configs=(
            {},
            {"variant": "lion", "optimize_1d": True, "clip": None, "lr": 1e-2},
            {"gamma": 0.1, "amsgrad": True, "first_step": "zero_last", "optimize_1d": True, "weight_decay": 0.1},
            {"lr": 1e-2, "lr_1d": 1e-2, "cautious_update": True, "cautious_weight_decay": True, "clip": 0.1},
        ),
        golden=golden("MARS-adamw", "MARS-lion"),
        errors=(
            BadCall(ValueError, "variant must be one of 'adamw', 'lion', got 'sgd'", {"variant": "sgd"}),
            BadCall(ValueError, "gamma must be >= 0, got -0.1", {"gamma": -0.1}),
            BadCall(ValueError, "clip must be > 0, got 0.0", {"clip": 0.0}),
            BadCall(ValueError, "first_step must be one of", {"first_step": "skip"}),
            BadCall(ValueError, "betas_1d must be >= 0 and < 1, got 1.0", {"betas_1d": (0.9, 1.0)}),
        ),
        seeds=("004.12",),
    ),
    OptimizerSpec(
        cls=Chain,
        found_inf=True,
        reference=reference({"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}, ("m", "v", "u", "last"), chain),
        configs=(
            {"transforms": [SecondMoment(), Momentum(), Divide(), BiasCorrect(), Decay()]},
            {
                "transforms": [
                    Correct(gamma=0.05, clip=0.5),
                    CentredSecondMoment(),
                    Divide(),
                    Momentum(),
                    BiasCorrect(),
                    Decay(cautious_weight_decay=True),
                ],
                "weight_decay": 0.3,
                "betas": (0.8, 0.99),
            },
            {"transforms": [CentredSecondMoment(), Centre(), Divide(), BiasCorrect(), Decay()], "eps": 1e-6},
        ),
        golden=golden("AdamW", "AdamW+CWD", "AdamW cautious update"),
        errors=(
            BadCall(ValueError, "transforms must hold at least one transform, got []", {"transforms": []}),
            BadCall(ValueError, "exp_avg is kept twice", {"transforms": [Momentum(), Momentum()]}),
            BadCall(
                ValueError,
                "bias_correction must be the same in all transforms, was False before, got True",
                {"transforms": [CentredSecondMoment(bias_correction=False), BiasCorrect()]},
            ),
            BadCall(ValueError, "gamma must be >= 0, got -1.0", {"transforms": [Correct(gamma=-1.0)]}),
            BadCall(ValueError, "Divide needs a transform before it that makes", {"transforms": [Divide()]}),
            BadCall(ValueError, "Centre needs a CentredSecondMoment before it", {"transforms": [Centre()]}),
            BadCall(TypeError, "transforms must be transforms, got 'adam'", {"transforms": ["adam"]}),
        ),
        seeds=("004.113",),
    ),
)

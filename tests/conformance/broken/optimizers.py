"""Optimizers that are broken on purpose."""

import math

import torch
from torch import distributed as dist

from tests.conformance.broken import Broken
from trainkit._core.checks import check_choice, check_number, reject
from trainkit.testing import BadCall, OptimizerSpec


class AdamLike(torch.optim.Optimizer):
    """A good one: AdamW, as a loop and on lists, with state in fp32."""

    def __init__(
        self,
        params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        maximize: bool = False,
        state_dtype: torch.dtype | None = torch.float32,
        impl: str = "loop",
    ):
        self.check(lr, betas, eps, weight_decay)
        check_choice(type(self).__name__, "impl", impl, ("loop", "foreach"))
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**hyper, "maximize": maximize, "state_dtype": state_dtype, "impl": impl})

    def check(self, lr, betas, eps, weight_decay):
        owner = type(self).__name__
        check_number(owner, "lr", float(lr), minimum=0)
        for beta in betas:
            check_number(owner, "betas", beta, minimum=0, maximum=1, open_maximum=True)
        check_number(owner, "eps", eps, minimum=0)
        check_number(owner, "weight_decay", weight_decay, minimum=0)

    def begin(self, p, group):
        dtype = p.dtype if group["state_dtype"] is None else torch.promote_types(p.dtype, group["state_dtype"])
        zeros = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        return {"step": torch.zeros((), dtype=torch.float32), "m": zeros, "v": zeros.clone()}

    def count(self, group, state):
        state["step"] += 1
        return state["step"]

    def gradient(self, p, group):
        if p.grad.is_sparse:
            raise RuntimeError(f"{type(self).__name__}: sparse gradients are not supported")
        if p.is_complex():
            raise TypeError(f"{type(self).__name__}: complex parameters are not supported")
        grad = p.grad.to(torch.promote_types(p.dtype, torch.float32))
        return -grad if group["maximize"] else grad

    def rate(self, group):
        return group["lr"]

    def decay(self, p, grad, group):
        return p * (1 - self.rate(group) * group["weight_decay"]), grad

    def average(self, state, grad, betas):
        state["m"].mul_(betas[0]).add_(grad, alpha=1 - betas[0])
        state["v"].mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])

    def divide(self, group, state, step):
        b1, b2 = (1 - beta ** step.double() for beta in group["betas"])
        return state["m"] / b1 / ((state["v"] / b2).sqrt() + group["eps"])

    def update(self, p, grad, state, group):
        step = self.count(group, state)
        value, grad = self.decay(p.to(grad.dtype), grad, group)
        self.average(state, grad, group["betas"])
        p.copy_(value - self.rate(group) * self.divide(group, state, step))

    def update_list(self, parameters, group):
        for p, grad, state in parameters:
            self.update(p, grad, state, group)

    def evaluate(self, closure):
        with torch.enable_grad():
            return closure()

    def move(self):
        for group in self.param_groups:
            items = []
            for p in group["params"]:
                if p.grad is not None:
                    grad, state = self.gradient(p, group), self.state[p]
                    if not state:
                        state.update(self.begin(p, group))
                    items.append((p, grad, state))
            if group["impl"] == "foreach":
                self.update_list(items, group)
            else:
                for p, grad, state in items:
                    self.update(p, grad, state, group)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else self.evaluate(closure)
        if getattr(self, "found_inf", 0) == 0:
            self.move()
        return loss

    def add_param_group(self, param_group):
        if len({id(p) for p in param_group["params"]}) < len(param_group["params"]):
            reject(type(self).__name__, "params", "hold each parameter once", "duplicates")
        super().add_param_group(param_group)

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def restore(self, kept):
        """The base class casts state to the dtype of the parameter."""
        for p, saved in kept:
            self.state[p].update({k: v.clone() for k, v in saved.items() if isinstance(v, torch.Tensor)})

    def load_state_dict(self, state_dict):
        saved = state_dict["state"]
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        for i in ids:
            if i in saved and not {"step", "m", "v"} <= set(saved[i]):
                reject(type(self).__name__, "state_dict", "have step, m and v", sorted(saved[i]))
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.restore([(p, saved[i]) for i, p in zip(ids, parameters, strict=True) if i in saved])


class NoBiasCorrection(AdamLike):
    def divide(self, group, state, step):
        return state["m"] / (state["v"].sqrt() + group["eps"])


class SwapsBetasOnLists(AdamLike):
    def update_list(self, parameters, group):
        super().update_list(parameters, {**group, "betas": group["betas"][::-1]})


class StateTakesTheDtypeOnLoad(AdamLike):
    def restore(self, kept):
        pass


class ForgetsNewerHyperParameters(AdamLike):
    def __setstate__(self, state):
        torch.optim.Optimizer.__setstate__(self, state)


class KeepsTheGradient(AdamLike):
    """As MARS's official code: the last gradient is not a copy."""

    def gradient(self, p, group):
        grad = super().gradient(p, group)
        last = self.state[p].get("last", grad)
        if self.state[p]:
            self.state[p]["last"] = grad
        return grad + 0.1 * (grad - last)

    def begin(self, p, group):
        return {**super().begin(p, group), "last": super().gradient(p, group)}


class HalvesTheGradient(AdamLike):
    def gradient(self, p, group):
        grad = super().gradient(p, group).clone()
        p.grad.mul_(0.5)
        return grad


class StepsOnInf(AdamLike):
    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else self.evaluate(closure)
        self.move()
        return loss


class CountsByGroup(AdamLike):
    """All parameters of a group have the count of the group."""

    def move(self):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        super().move()

    def count(self, group, state):
        state["step"].fill_(group["count"])
        return state["step"]


class TakesTensorsOnly(AdamLike):
    def add_param_group(self, param_group):
        for p in param_group["params"]:
            if not isinstance(p, torch.Tensor):
                reject(type(self).__name__, "params", "be tensors", p, TypeError)
        super().add_param_group(param_group)


class ReadsTheDefaults(AdamLike):
    """A change of eps in the groups has no effect."""

    def divide(self, group, state, step):
        return super().divide({**group, "eps": self.defaults["eps"]}, state, step)


class KeepsTheFirstRate(AdamLike):
    """The learning rate of the first step, saved beside the parameters, is that of all."""

    def begin(self, p, group):
        return {**super().begin(p, group), "rate": float(group["lr"])}

    def update(self, p, grad, state, group):
        super().update(p, grad, state, {**group, "lr": state["rate"]})


class ClosureWithoutGradients(AdamLike):
    def evaluate(self, closure):
        return closure()


class ReturnsNothing(AdamLike):
    def step(self, closure=None):
        super().step(closure)


class StateInTheParametersDtype(AdamLike):
    def begin(self, p, group):
        return super().begin(p, {**group, "state_dtype": None})


class CoupledDecay(AdamLike):
    def decay(self, p, grad, group):
        return p, grad + group["weight_decay"] * p


class MaximizesTheDecay(AdamLike):
    def decay(self, p, grad, group):
        sign = -1 if group["maximize"] else 1
        return p * (1 - sign * group["lr"] * group["weight_decay"]), grad


class ReadsTheRateOnce(AdamLike):
    """A tensor for the learning rate is read when it comes."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self.param_groups[-1]["lr"] = float(self.param_groups[-1]["lr"])


class StateBesideTheParameters(AdamLike):
    """As MADGRAD: an entry that is no dict of a parameter."""

    def move(self):
        self.state["k"] = torch.tensor(1.0)
        super().move()


class StepIsAnInteger(AdamLike):
    def begin(self, p, group):
        return {**super().begin(p, group), "step": torch.zeros((), dtype=torch.int64)}


class LosesAnAttribute(AdamLike):
    """The base class copies and pickles groups and state alone."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self.scale = 1.0

    def divide(self, group, state, step):
        return super().divide(group, state, step) * self.scale


class AcceptsAnything(AdamLike):
    def check(self, lr, betas, eps, weight_decay):
        pass


class ClosureByAnotherName(AdamLike):
    """Lightning gives the closure by name."""

    def step(self, evaluate=None):
        return super().step(evaluate)


class WrongAnnotation(AdamLike):
    def __init__(
        self,
        params,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: int = 0,
        maximize: bool = False,
        impl: str = "loop",
    ):
        super().__init__(params, lr, betas, weight_decay=weight_decay, maximize=maximize, impl=impl)


class Climbs(AdamLike):
    def divide(self, group, state, step):
        return -super().divide(group, state, step)


class NeedsDimensions(AdamLike):
    def gradient(self, p, group):
        return super().gradient(p, group).reshape(p.shape[0], -1).view(p.shape)


class NeedsContiguousGradients(AdamLike):
    def gradient(self, p, group):
        return super().gradient(p, group).view(-1).view(p.shape)


class NoiseByRank(AdamLike):
    """Ranks round with random numbers of their own."""

    def divide(self, group, state, step):
        rank = dist.get_rank() if dist.is_initialized() else 0
        generator = torch.Generator().manual_seed(rank)
        moved = super().divide(group, state, step)
        return moved + 1e-3 * torch.rand(moved.shape, generator=generator) * rank


def adam(parameters, gradients, config):
    lr, wd = config.get("lr", 1e-2), config.get("weight_decay", 0.0)
    b1, b2 = config.get("betas", (0.9, 0.99))
    sign = -1 if config.get("maximize", False) else 1
    values = list(parameters)
    moments = [[0.0 * p, 0.0 * p] for p in parameters]
    after = []
    for t, own in enumerate(gradients, 1):
        for i, g in enumerate(own):
            m, v = moments[i]
            moments[i] = m, v = [b1 * m + (1 - b1) * sign * g, b2 * v + (1 - b2) * g * g]
            update = m / (1 - b1**t) / ((v / (1 - b2**t)) ** 0.5 + 1e-8)
            values[i] = values[i] * (1 - lr * wd) - lr * update
        after.append(list(values))
    return after


def record(cls, **changes):
    known = {
        "configs": ({},),
        "reference": adam,
        "found_inf": True,
        "errors": (
            BadCall(ValueError, "impl must be one of 'loop', 'foreach', got 'fast'", {"impl": "fast"}),
            BadCall(ValueError, "lr must be >= 0, got inf", {"lr": math.inf}),
        ),
    }
    return OptimizerSpec(cls=cls, **{**known, **changes})


SEVERAL = ({}, {"betas": (0.8, 0.9), "weight_decay": 0.1, "impl": "foreach"}, {"maximize": True})

GOOD = record(AdamLike, configs=SEVERAL)

BROKEN = (
    Broken("O1", record(NoBiasCorrection)),
    Broken("O2", record(SwapsBetasOnLists)),
    Broken("O3", record(StateTakesTheDtypeOnLoad)),
    Broken("O3", record(ForgetsNewerHyperParameters)),
    Broken("O4", record(KeepsTheGradient, reference=None)),
    Broken("O4", record(HalvesTheGradient)),
    Broken("O4", record(StepsOnInf)),
    Broken("O5", record(CountsByGroup)),
    Broken("O6", record(TakesTensorsOnly)),
    Broken("O7", record(ReadsTheDefaults)),
    Broken("O7", record(KeepsTheFirstRate)),
    Broken("O8", record(ClosureWithoutGradients)),
    Broken("O8", record(ReturnsNothing)),
    Broken("O9", record(StateInTheParametersDtype)),
    Broken("O10", record(CoupledDecay, reference=None)),
    Broken("O10", record(MaximizesTheDecay, configs=({}, {"maximize": True}))),
    Broken("O11", record(ReadsTheRateOnce)),
    Broken("O12", record(StateBesideTheParameters)),
    Broken("O12", record(StepIsAnInteger)),
    Broken("O13", record(LosesAnAttribute)),
    Broken("O14", record(AcceptsAnything)),
    Broken("O15", record(ClosureByAnotherName)),
    Broken("O16", record(WrongAnnotation, configs=({}, {"weight_decay": 0.1}))),
    Broken("O17", record(Climbs, reference=None)),
    Broken("O18", record(NeedsDimensions)),
    Broken("O18", record(NeedsContiguousGradients)),
    Broken("O19", record(NoiseByRank)),
)

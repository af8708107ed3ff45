"""Properties of optimizers: small fits, in low precision, compiled, and in Lightning."""

import math
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from trainkit.testing.common import quiet
from trainkit.testing.faults import Fault, require
from trainkit.testing.optimizers.common import (
    OptimizerCase,
    build,
    draw_gradients,
    draw_parameters,
    learning_rate,
    same,
    shapes_of,
    start,
    state_of,
    step_on,
    step_with,
    walk,
)
from trainkit.testing.optimizers.net import NET_SHAPES, Net, draw_batches
from trainkit.testing.properties import prop

ROWS, STEPS, LAST = 32, 100, 20
SCALE = 0.3
"""Size of the solution, small enough for steps of usual learning rates to count in bf16 where they end."""
COMPILED = ((3, 4), ())
"""Few shapes: each may be compiled by itself."""
CLIP = 0.5
SHARE = 0.5
"""Share of the loss that may be left by default."""


class LeastSquares:
    """A noisy linear problem whose parameters start at zero, where a step is not lost to rounding.

    Args:
        case: Gives the shapes that the class takes.
        dtype: Dtype of parameters and gradients; the problem itself is computed in fp32.
        batch: Number of rows of each step; 0 for all.
    """

    def __init__(self, case: OptimizerCase, dtype: torch.dtype = torch.float32, batch: int = 0) -> None:
        self.parameters = [nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes_of(case, ((6, 3), (3,)))]
        self.generator = torch.Generator().manual_seed(0)
        self.batch = batch
        self.x = torch.randn(ROWS, 6, generator=self.generator)
        noise = torch.randn(ROWS, 3, generator=self.generator)
        truth = torch.randn(6, 3, generator=self.generator).sign()
        self.y = SCALE * (self.x @ truth + noise)
        # Going up, an optimizer has to be given the negative slopes.
        self.sign = -1 if case.has("maximize") and case.setting("maximize") else 1

    def error(self) -> Tensor:
        weight, *bias = (p.detach().float() for p in self.parameters)
        return self.x @ weight + (bias[0] if bias else 0) - self.y

    def loss(self) -> float:
        """Mean squared error over all rows."""
        return float(self.error().square().mean())

    def step(self, optimizer: Any) -> None:
        """One step on a batch."""
        rows = torch.randint(ROWS, (self.batch,), generator=self.generator) if self.batch else slice(None)

        def closure() -> Tensor:
            error = self.error()[rows]
            slopes = [self.x[rows].T @ error, error.sum(0)]
            for parameter, slope in zip(self.parameters, slopes, strict=False):
                parameter.grad = (self.sign * slope * 2 / error.numel()).to(parameter.dtype)
            return error.square().mean()

        step_on(optimizer, closure)


def _fitted(case: OptimizerCase, dtype: torch.dtype, factor: float) -> tuple[Any, float]:
    """The optimizer after a fit with a multiple of the learning rate, and the mean loss of the last steps."""
    problem = LeastSquares(case, dtype)
    lr = learning_rate(case)
    optimizer = build(case, problem.parameters, **_lr(lr and lr * factor))
    losses: list[float] = []
    for _ in range(STEPS):
        problem.step(optimizer)
        losses.append(problem.loss() if len(losses) >= STEPS - LAST else 0.0)
    for parameter in problem.parameters:
        require(parameter.dtype == dtype, "dtype of a parameter after steps", dtype, parameter.dtype)
    return optimizer, statistics.fmean(losses[-LAST:])


@prop("O9", "low precision")
def low_precision(case: OptimizerCase) -> None:
    """Least squares with bf16 and fp16 parameters end within 2 % of the fp32 loss; state is fp32 where that is set.

    The learning rate is that of the configuration, or the multiple of it by 10 or 100 that ends lowest in fp32.
    """
    ended = {factor: _fitted(case, torch.float32, factor) for factor in (1, 10, 100)}
    # A loss that is not a number is less than none, so that it can't be the lowest.
    best = min(ended, key=lambda factor: (not ended[factor][1] < math.inf, ended[factor][1]))
    optimizer, exact = ended[best]
    wide = {k for own in state_of(optimizer) for k, v in own.items() if getattr(v, "dtype", None) == torch.float64}
    require(not wide, "state in float64 for fp32 parameters", "none", sorted(wide))
    for dtype in (torch.bfloat16, torch.float16):
        optimizer, loss = _fitted(case, dtype, best)
        what = f"with {str(dtype).removeprefix('torch.')} parameters"
        require(loss <= 1.02 * exact, f"loss after {STEPS} steps {what}", f"at most {1.02 * exact:.5g}", loss)
        if case.has("state_dtype") and case.setting("state_dtype") == torch.float32:
            _check_wide(what, optimizer)


def _check_wide(what: str, optimizer: Any) -> None:
    for own in state_of(optimizer):
        for name, value in own.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                require(value.dtype == torch.float32, f"dtype of state {name!r} {what}", torch.float32, value.dtype)


def _lr(value: Any) -> dict[str, Any]:
    """The learning rate as an argument, for classes that take one."""
    return {} if value is None else {"lr": value}


@prop("O11", "tensor learning rate and compiled step", dear=True)
def compiles(case: OptimizerCase) -> None:
    """A learning rate in a tensor, also one that changes, and a step under torch.compile give the eager parameters."""
    lr = learning_rate(case)
    rate = None if lr is None else torch.tensor(lr)
    # In float64, torch.compile takes tensors without dimensions on the CPU for Python numbers, and keeps the first.
    plain, parameters = start(case, torch.float32, COMPILED, **_lr(None if rate is None else rate.item()))
    gradients = draw_gradients([tuple(p.shape) for p in parameters], 5, torch.float32)

    def halve(step: int) -> None:
        if step == 2 and rate is not None:
            plain.param_groups[0]["lr"] = rate.item() / 2

    expected = walk(plain, parameters, gradients, halve)
    for compiled in (False, True):
        own = None if rate is None else rate.clone()
        optimizer, others = start(case, torch.float32, COMPILED, **_lr(own))
        if compiled:
            torch._dynamo.reset()
            optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
        what = "of a compiled step" if compiled else "with a tensor for lr"
        for step, given in enumerate(gradients):
            if own is not None and step == 2:
                own.mul_(0.5)
            with quiet("torch._dynamo"):
                step_with(optimizer, others, given)
            same(f"parameters {what}, step {step + 1}", others, expected[step], rtol=1e-6)
        if own is not None and rate is not None:
            require(own.item() == rate.item() / 2, "tensor lr after the steps", rate.item() / 2, own)


@prop("O17", "convergence")
def convergence(case: OptimizerCase) -> None:
    """The figure of the record is under its bound; by default, 100 noisy steps leave less than half of the loss.

    The default tries the learning rate of the configuration and multiples of it up to 100.
    """
    if case.spec.convergence is not None:
        figure, bound = case.spec.convergence(case.spec.cls, case.config)
        require(figure < bound, "figure of the record", f"below {bound:.6g}", figure)
        return
    lr = learning_rate(case)
    shares = {}
    for factor in (1, 3, 10, 30, 100) if lr else (1,):
        problem = LeastSquares(case, batch=8)
        optimizer = build(case, problem.parameters, **_lr(lr and lr * factor))
        first = problem.loss()
        for _ in range(STEPS):
            problem.step(optimizer)
        shares[factor] = problem.loss() / first
        if shares[factor] < SHARE:
            return
    raise Fault(f"share of the loss left after {STEPS} steps, by factor of lr", f"one below {SHARE}", shares)


def _fit_in_lightning(case: OptimizerCase, precision: str, epochs: int, folder: Path, resume: bool) -> list[Tensor]:
    """Parameters after epochs of a fit, which starts from a checkpoint in the folder or else leaves one there."""
    from lightning.pytorch import LightningModule, Trainer

    net = Net(draw_parameters(shapes_of(case, NET_SHAPES), torch.float32))
    batches = draw_batches(4, torch.float32)

    class Fit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: int) -> Tensor:
            return self.net.loss(*batches[batch])

        def configure_optimizers(self) -> Any:
            return build(case, list(self.net.parameters()))

    checkpoint = folder / f"{precision}.ckpt"
    with quiet("lightning.pytorch", "lightning.fabric"):
        trainer: Any = Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,  # type: ignore[arg-type]
            max_epochs=epochs,
            gradient_clip_val=CLIP,
            accumulate_grad_batches=_accumulated(case),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Fit(), train_dataloaders=range(len(batches)), ckpt_path=checkpoint if resume else None)
        if not resume:
            trainer.save_checkpoint(checkpoint)
    return [p.detach() for p in net.parameters()]


def _accumulated(case: OptimizerCase) -> int:
    """Two-pass methods would add their second gradient to the first."""
    return 2 if getattr(case.spec.cls, "closure_calls", 1) == 1 else 1


def _fit_in_a_loop(case: OptimizerCase, epochs: int) -> list[Tensor]:
    """The same fit without Lightning."""
    net = Net(draw_parameters(shapes_of(case, NET_SHAPES), torch.float32))
    optimizer = build(case, list(net.parameters()))
    batches = draw_batches(4, torch.float32) * epochs
    count = _accumulated(case)
    for first in range(0, len(batches), count):

        def closure(some: Any = batches[first : first + count]) -> Tensor:
            optimizer.zero_grad()
            loss = torch.stack([net.loss(*batch) for batch in some]).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            return loss

        step_on(optimizer, closure)
    return [p.detach() for p in net.parameters()]


@prop("O15", "in Lightning", dear=True)
def in_lightning(case: OptimizerCase) -> None:
    """A fit with clipping and accumulation is that of a plain loop; a checkpoint goes on to the same parameters."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for precision in ("32-true", "bf16-mixed"):
            whole = _fit_in_lightning(case, precision, 2, folder, resume=False)
            _fit_in_lightning(case, precision, 1, folder, resume=False)
            resumed = _fit_in_lightning(case, precision, 2, folder, resume=True)
            same(f"after a resume, {precision}", resumed, whole)
            if precision == "32-true":
                same("of a Lightning fit against a plain loop", whole, _fit_in_a_loop(case, 2), rtol=1e-5)

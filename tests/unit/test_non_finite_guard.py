"""The guard stops a run on every rank before a loss that is no number reaches the weights."""

import math
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from trainkit.callbacks import NonFiniteGuard

ROWS = 24


def rows(indices):
    x = torch.stack([torch.randn(3, generator=torch.Generator().manual_seed(i)) for i in indices])
    return {"x": x, "index": torch.tensor(indices)}


class Net(LightningModule):
    """Its loss is ``bad`` at one batch, on one rank; or its gradient is no number there."""

    def __init__(self, at=None, bad=math.nan, rank=0, gradient=False):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Linear(3, 1)
        self.at, self.bad, self.rank, self.gradient = at, bad, rank, gradient
        self.before = None

    def training_step(self, batch, index):
        loss = self.net(batch["x"]).square().mean()
        here = index == self.at and (not dist.is_initialized() or dist.get_rank() == self.rank)
        if here:
            self.before = [p.detach().clone() for p in self.parameters()]
        if here and self.gradient:
            # The root of zero has an infinite slope, and zero times that is no number.
            return loss + (0 * self.net.bias).sum().abs().sqrt()
        return loss * self.bad if here else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(net, callbacks, tmp_path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            default_root_dir=tmp_path,
            **options,
        )
        trainer.fit(net, DataLoader(range(ROWS), 4, collate_fn=rows))
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_of_the_last_good_step(bad, tmp_path):
    net = Net(at=3, bad=bad)
    words = f"the loss is -?{abs(bad)} on rank 0 at step 3, epoch 0, batch 3, rows 12, 13, 14, 15"
    with pytest.raises(FloatingPointError, match=f"^NonFiniteGuard: {words}$"):
        fit(net, [NonFiniteGuard()], tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), net.before, strict=True))
    assert all(p.isfinite().all() for p in net.parameters())


def test_accumulated_batches_are_looked_at_one_by_one(tmp_path):
    with pytest.raises(FloatingPointError, match="at step 2, epoch 0, batch 5, rows 20, 21, 22, 23"):
        fit(Net(at=5), [NonFiniteGuard()], tmp_path, accumulate_grad_batches=2)


def test_gradients_are_looked_at_on_demand(tmp_path):
    net = Net(at=2, gradient=True)
    with pytest.raises(FloatingPointError, match=r"the gradients of net\.bias are not finite on rank 0 at step 2"):
        fit(net, [NonFiniteGuard(gradients=True)], tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), net.before, strict=True))
    # A look at losses alone comes one step later.
    with pytest.raises(FloatingPointError, match="the loss is nan on rank 0 at step 3"):
        fit(Net(at=2, gradient=True), [NonFiniteGuard()], tmp_path)


@pytest.mark.parametrize("guard", [NonFiniteGuard(), NonFiniteGuard(gradients=True)])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_without_faults_is_bitwise_the_same(guard, precision, tmp_path):
    alone = fit(Net(), [], tmp_path, precision=precision)
    assert all(
        torch.equal(a, b) for a, b in zip(fit(Net(), [guard], tmp_path, precision=precision), alone, strict=True)
    )


class OnRank:
    """What the guard reads of a trainer, on a rank of the pool."""

    global_step, current_epoch = 7, 1

    @property
    def global_rank(self):
        return dist.get_rank()


def guarded(values):
    guard = NonFiniteGuard()
    guard.on_train_batch_start(OnRank(), None, None, 4)
    try:
        guard.on_before_backward(OnRank(), None, torch.tensor(values[dist.get_rank()]))
    except FloatingPointError as error:
        return str(error)
    return None


@pytest.mark.xdist_group("ranks")
def test_all_ranks_stop_when_one_has_to(pool):
    assert pool.run(guarded, [([1.0, 2.0],)] * 2) == [None, None]
    first, second = pool.run(guarded, [([1.0, math.nan],)] * 2)
    assert first == "NonFiniteGuard: rank 1 found something that is not finite at step 7, epoch 1, batch 4"
    assert re.fullmatch("NonFiniteGuard: the loss is nan on rank 1 at step 7, epoch 1, batch 4", second)

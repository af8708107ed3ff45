"""``trainkit check`` on losses that people write, and on calls that can't be checked."""

import textwrap

import pytest

from trainkit.cli.main import main

LOSSES = '''
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class GathersConstants(nn.Module):
    """In-batch softmax over the keys of all ranks, which all_gather returns without gradients."""

    def forward(self, query, key):
        keys = key
        if dist.is_initialized():
            keys = [torch.empty_like(key) for _ in range(dist.get_world_size())]
            dist.all_gather(keys, key)
            keys = torch.cat(keys)
        start = len(query) * dist.get_rank() if dist.is_initialized() else 0
        logits = F.normalize(query, dim=1) @ F.normalize(keys, dim=1).T / 0.1
        return F.cross_entropy(logits, start + torch.arange(len(query)))


class NaiveFocal(nn.Module):
    """The textbook formula, whose power has an infinite slope at p = 1."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        log_p = logits.float().log_softmax(1) if logits.dtype != torch.float64 else logits.log_softmax(1)
        log_p = log_p.gather(1, target[:, None])
        return -((1 - log_p.exp()) ** self.gamma * log_p).sum() / max(len(target), 1)


class LowPrecision(nn.Module):
    """Looks like fp32, but autocast lowers the product and logsumexp stays low."""

    def forward(self, query, key):
        logits = query @ key.T
        return (logits.logsumexp(1) - logits.diagonal()).float().sum() / max(len(query), 1)
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_losses_for_check.py"
    path.write_text(textwrap.dedent(LOSSES))
    return path


def checked(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        main(["check", *args])
    return stop.value.code, capsys.readouterr()


def section(out, rule):
    """The report of one property."""
    start = out.index(f"\n{rule}") + 1
    return out[start : out.find("\n\n", start)]


@pytest.mark.xdist_group("pools")
def test_a_gather_without_gradients_fails_on_ranks(file, capsys):
    code, text = checked(capsys, f"{file}:GathersConstants", "--kind", "pairs", "--only", "L16")
    report = section(text.out, "L16 ranks:")
    assert code == 1
    assert "gradient of key on rank 0 against 2 x the gradient on one process, 4+4 rows on 2 ranks" in report
    for word in ("rank 0 of 2", "dtype float64", "query (8, 4)", "expected [[", "got      [["):
        assert word in report


@pytest.mark.xdist_group("pools")
def test_a_focal_loss_with_a_nan_gradient_at_half_a_gamma_fails_at_extremes(file, capsys):
    code, text = checked(capsys, f"{file}:NaiveFocal", "--kind", "classification", "--only", "L6")
    report = section(text.out, "L6 finite")
    assert code == 1
    assert "NaiveFocal(gamma=0.5)" in report
    for word in ("gradient of logits", "rank 0 of 1", "dtype float32", "logits (1, 5)", "expected finite", "nan"):
        assert word in report
    assert "NaiveFocal(), inputs of kind classification\n  L6  finite at extremes                    holds" in text.out


@pytest.mark.xdist_group("pools")
def test_a_loss_in_bf16_under_autocast_fails(file, capsys):
    code, text = checked(capsys, f"{file}:LowPrecision", "--kind", "pairs", "--only", "L5")
    report = section(text.out, "L5 fp32")
    assert code == 1
    for word in ("under bf16 autocast", "rank 0 of 1", "dtype float32", "query (2, 4)", "expected ", "got "):
        assert word in report


@pytest.mark.xdist_group("pools")
def test_cross_entropy_of_torch_is_nan_on_an_empty_batch(capsys):
    code, text = checked(capsys, "torch.nn.CrossEntropyLoss", "--kind", "classification", "--only", "L7")
    report = section(text.out, "L7 nothing")
    assert code == 1
    for word in ("an empty batch", "rank 0 of 1", "dtype float64", "input (0, 5), target (0,)", "expected 0.0", "nan"):
        assert word in report
    assert "also: CrossEntropyLoss(reduction='none')" in report


@pytest.mark.xdist_group("pools")
def test_an_optimizer_of_torch_needs_no_kind_and_takes_nan_for_a_learning_rate(capsys):
    code, text = checked(capsys, "torch.optim.SGD", "--only", "O8", "--only", "O14")
    assert code == 1
    assert "SGD(momentum=0.9)\n  O8  closure                               holds" in text.out
    report = section(text.out, "O14 errors: SGD()")
    for word in ("lr=nan", "expected ValueError", "no exception", "also: SGD(momentum=0.9), SGD(weight_decay=0.1)"):
        assert word in report


@pytest.mark.xdist_group("pools")
def test_ours_passes_and_the_command_ends_with_0(capsys):
    main(["check", "FocalLoss", "--quick", "--init", "gamma=0.5"])
    out = capsys.readouterr().out
    assert "0 faults" in out
    assert "FAULT" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no.such.Loss"], "no.such.Loss: no class found; tried import no.such"),
        (["torch.nn.NoSuchLoss"], "tried NoSuchLoss in torch.nn: no such name"),
        (["Unheard"], "Unheard: no class found; tried nothing"),
        (["torch.nn.functional.cross_entropy"], "cross_entropy in torch.nn.functional: a function, not a class"),
        (["torch.nn.LazyLinear"], "LazyLinear: tried LazyLinear(), which raised TypeError"),
        (["torch.nn.TripletMarginLoss"], "no input kind has the tensors anchor, positive, negative; name one of"),
        (["FocalLoss", "--kind", "images"], "kind must be one of classification,"),
        (["FocalLoss", "--kind", "pairs"], "FocalLoss: needs 'logits', which inputs of this kind don't have"),
        (["FocalLoss", "--init", "gamma=-1"], "tried FocalLoss(gamma=-1), which raised ValueError: FocalLoss: gamma"),
        (["FocalLoss", "--init", "gamma"], "--init must be NAME=VALUE or a JSON object, got 'gamma'"),
        (["FocalLoss", "--only", "L99"], "--only must name some of L1, L2"),
        (["FocalLoss", "--family", "toys"], "--family must be one of losses"),
        (["torch.optim.SGD", "--init", "lr=-1"], "tried SGD(lr=-1), which raised ValueError: Invalid learning rate"),
        (["builtins.dict"], "dict: there are no properties for a class of this sort"),
    ],
)
def test_what_cannot_be_checked_is_said_with_what_was_tried(args, words, capsys):
    code, text = checked(capsys, *args)
    assert code == 2
    assert words in text.err
    assert text.err.startswith("trainkit check: ")
    assert len(text.err.splitlines()) == 1

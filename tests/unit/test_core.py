"""The private core: numerics, reduction, checks and binding."""

import math
from decimal import Decimal, getcontext

import pytest
import torch
from torch import nn

from trainkit._core.binding import bind
from trainkit._core.checks import check_number, check_values
from trainkit._core.numerics import fp32_region, log1m_softmax
from trainkit._core.reduction import graph_zero, reduce, target_weights

getcontext().prec = 60


def exact_log1m_softmax(row):
    powers = [Decimal(z).exp() for z in row]
    return [float(((sum(powers) - p) / sum(powers)).ln()) for p in powers]


@pytest.mark.parametrize(
    "row", [[0.0, 0.0], [30.0, 0.0, -2.0], [50.0, 49.0, 1.0], [-3.0, 200.0, 150.0], [1.0, 1.0, 1.0]]
)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_log1m_softmax_is_accurate_where_a_probability_rounds_to_one(row, dtype, rtol):
    got = log1m_softmax(torch.tensor([row], dtype=dtype))[0]
    expected = torch.tensor(exact_log1m_softmax(row), dtype=torch.float64).clamp_min(
        -80 if dtype == torch.float32 else -700
    )
    torch.testing.assert_close(got.double(), expected, rtol=rtol, atol=1e-6 if dtype == torch.float32 else 1e-15)


def test_log1m_softmax_of_one_class_is_the_floor_with_zero_gradient():
    logits = torch.tensor([[3.0]], requires_grad=True)
    value = log1m_softmax(logits)
    value.sum().backward()
    assert value.item() == -80.0
    assert logits.grad.item() == 0.0


def test_fp32_region_raises_halves_and_keeps_doubles():
    @fp32_region
    def dtypes(a, b, *, c):
        return a.dtype, b.dtype, (a @ a).dtype, c

    half = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = dtypes(half, half.double(), c="text")
    assert got == (torch.float32, torch.float64, torch.float32, "text")


def test_graph_zero_is_attached_and_silent_about_infinities():
    a = torch.tensor([math.inf, math.nan], requires_grad=True)
    b = torch.ones(2, 3, requires_grad=True)
    zero = graph_zero(a, None, b)
    zero.backward()
    assert zero.item() == 0.0
    assert not a.grad.any()
    assert not b.grad.any()
    with pytest.raises(ValueError, match="graph_zero: tensors must hold at least one tensor"):
        graph_zero()


def test_mean_divides_by_the_weight_and_is_zero_without_any():
    rows, weights = torch.tensor([1.0, 4.0]), torch.tensor([0.5, 1.0])
    assert reduce(rows, weights, "mean").item() == pytest.approx(5 / 1.5)
    assert reduce(rows, weights, "sum").item() == 5.0
    assert reduce(rows, weights, "none") is rows
    assert reduce(0 * rows, 0 * weights, "mean").item() == 0.0


def test_target_weights_multiply_what_is_given():
    like = torch.zeros(3)
    valid = torch.tensor([True, False, True])
    mask = torch.tensor([True, True, False])
    weight = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
    assert target_weights(like, None, None, None).tolist() == [1, 1, 1]
    assert target_weights(like, valid, weight, None).tolist() == [2, 0, 4]
    assert target_weights(like, valid, weight, mask).tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (-1.0, {"minimum": 0}, "Part: rate must be >= 0, got -1.0"),
        (1.0, {"minimum": 0, "maximum": 1, "open_maximum": True}, "Part: rate must be >= 0 and < 1, got 1.0"),
        (0, {"minimum": 0, "open_minimum": True}, "Part: rate must be > 0, got 0"),
        (math.nan, {}, "Part: rate must be finite, got nan"),
        (math.inf, {"minimum": 0}, "Part: rate must be >= 0, got inf"),
    ],
)
def test_numbers_out_of_range_are_named(value, bounds, text):
    with pytest.raises(ValueError, match="Part: rate") as error:
        check_number("Part", "rate", value, **bounds)
    assert str(error.value) == text


@pytest.mark.parametrize("value", [True, "1", None, torch.ones(())])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="Part: rate must be a number, got"):
        check_number("Part", "rate", value)


def test_values_are_reported_with_their_place():
    target = torch.tensor([[0, 1], [9, 2]])
    with pytest.raises(ValueError, match=r"^Part: target must be small, got 9 at index \(1, 0\)$"):
        check_values("Part", ("target", "be small", target, target < 5))


def test_binding_takes_by_name_what_the_signature_asks_for():
    class Probe(nn.Module):
        def forward(self, query, key, *, mask=None):
            return query, key, mask

    batch = {"key": 2, "query": 1, "logits": 3}
    assert bind(Probe(), batch) == {"query": 1, "key": 2}
    assert bind(Probe(), {**batch, "mask": 4}) == {"query": 1, "key": 2, "mask": 4}
    with pytest.raises(ValueError, match="Probe: needs the tensor 'key', but only these were given: query, logits"):
        bind(Probe(), {"query": 1, "logits": 3})

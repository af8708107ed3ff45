"""Calls for the golden records of the contrastive losses on embeddings."""

import torch

from tests.golden.bindings.losses import evaluate
from trainkit.losses import ClipLoss, InfoNCELoss, MannWhitneyLoss, NTXentLoss, SigLIPLoss


def renamed(result, **names):
    """Gradients under the names of the record."""
    return {**result, "grad": {names.get(k, k): v for k, v in result["grad"].items()}}


def with_parameters(module, inputs, values, **names):
    """Value and gradients, those of the loss's own parameters included, with the parameters set to ``values``."""
    module = module.double()
    with torch.no_grad():
        for name, value in values.items():
            getattr(module, name).copy_(torch.as_tensor(value, dtype=torch.float64))
    found = renamed(evaluate(module, inputs, *inputs), **names)
    found["grad"] |= {k: p.grad for k, p in module.named_parameters()}
    return found


def towers(record):
    return {"query": record["inputs"]["image"], "key": record["inputs"]["text"]}


def clip(record):
    scale = record["inputs"]["log_scale"]
    return with_parameters(ClipLoss(), towers(record), {"log_scale": scale}, query="image", key="text")


def clip_scale_100(record):
    """The scale and every block size that the record names; all must agree."""
    scale = record["params"]["scale"]
    inputs = towers(record)
    results = []
    for block in [None, *record["params"]["block_sizes"]]:
        for size in {block, (block, block) if block else None}:
            module = ClipLoss(temperature=1 / scale, learnable=False, block_size=size)
            results.append(renamed(evaluate(module, inputs, "query", "key"), query="image", key="text"))
    for other in results[1:]:
        torch.testing.assert_close(other["value"], results[0]["value"], rtol=1e-12, atol=1e-14)
        for name, gradient in results[0]["grad"].items():
            torch.testing.assert_close(other["grad"][name], gradient, rtol=1e-9, atol=1e-12)
    return results[0]


def explicit_negatives(record):
    inputs = record["inputs"]
    module = InfoNCELoss(temperature=record["params"]["temperature"], candidates="explicit")
    given = {"query": inputs["query"], "key": inputs["positive"], "negatives": inputs["negatives"]}
    return renamed(evaluate(module, given, *given), key="positive")


def nt_xent(record):
    given = {"query": record["inputs"]["z0"], "key": record["inputs"]["z1"]}
    return renamed(evaluate(NTXentLoss(record["params"]["temperature"]), given, *given), query="z0", key="z1")


def sig_lip(record):
    inputs = record["inputs"]
    values = {"log_scale": inputs["log_scale"], "logit_bias": inputs["bias"]}
    found = with_parameters(SigLIPLoss(), towers(record), values, query="image", key="text")
    found["grad"]["bias"] = found["grad"].pop("logit_bias")
    return found


def mann_whitney(record):
    params = record["params"]
    given = {"query": record["inputs"]["q"], "key": record["inputs"]["d"]}
    module = MannWhitneyLoss(params["temperature"], params["pairing"])
    return renamed(evaluate(module, given, *given), query="q", key="d")


NAMES = {
    "ClipLoss.symmetric": clip,
    "ClipLoss.two_rank_equivalence": clip,
    "InfoNCELoss.explicit_negatives": explicit_negatives,
    "MannWhitneyLoss.in_batch_global": mann_whitney,
    "MannWhitneyLoss.in_batch_per_query": mann_whitney,
    "NTXentLoss": nt_xent,
    "SigLIPLoss": sig_lip,
    "TiledInfoNCE.scale100_hard": clip_scale_100,
    "TiledInfoNCE.scale100_no_overflow": clip_scale_100,
}

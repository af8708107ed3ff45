"""Records of the contrastive losses, each plain, in strips and in tiles."""

import math

import torch

from tests.golden.bind import golden
from trainkit.losses import (
    ClipLoss,
    InfoNCELoss,
    MannWhitneyLoss,
    NTXentLoss,
    SigLIPLoss,
    clip_loss,
    info_nce_loss,
    mann_whitney_loss,
    nt_xent_loss,
    sig_lip_loss,
)
from trainkit.testing import BadCall, Invariance, LossSpec

BLOCKS = (3, (1, 1), (3, 3), (16, 17))


def unit(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / max(norm, 1e-12) for x in row]


def products(rows, columns, scale, normalize):
    if normalize:
        rows, columns = [unit(r) for r in rows], [unit(c) for c in columns]
    return [[scale * sum(x * y for x, y in zip(r, c, strict=True)) for c in columns] for r in rows]


def log_sum_exp(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def rounded(value):
    """What a learned hyper-parameter holds of a number."""
    return float(torch.tensor(value, dtype=torch.float32))


def scale_of(temperature, learnable):
    return math.exp(rounded(-math.log(temperature))) if learnable else 1 / temperature


def reduced(rows, reduction):
    return rows if reduction == "none" else sum(rows) / (len(rows) if reduction == "mean" else 1)


def softmax_row(scores, positives, own, candidates, smoothing):
    """Cross-entropy of one row against the mean of its positives, mixed with the uniform distribution."""
    total = log_sum_exp([scores[j] for j in candidates])
    target = sum(scores[j] for j in positives) / len(positives)
    uniform = sum(scores[j] for j in candidates) / len(candidates)
    return total - (1 - smoothing) * target - smoothing * uniform


def info_nce_reference(
    query,
    key,
    ids=None,
    negatives=None,
    temperature=0.07,
    learnable=False,
    normalize=True,
    symmetric=False,
    candidates="in_batch",
    label_smoothing=0.0,
    same_id="positive",
    reduction="mean",
    block_size=None,
):
    n = len(query)
    ids = ids or list(range(n))
    if negatives and isinstance(negatives[0][0], list):
        negatives = [row for rows in negatives for row in rows]
    scale = scale_of(temperature, learnable)
    scores = products(query, key + (negatives or []), scale, normalize)
    extra = range(n, n + len(negatives or []))

    def one_side(table):
        rows = []
        for i in range(n):
            same = [j for j in range(n) if ids[j] == ids[i]]
            others = [j for j in range(n) if ids[j] != ids[i]] if candidates != "explicit" else []
            if same_id == "exclude" or candidates == "explicit":
                same = [i]
            rows.append(softmax_row(table[i], same, i, [*same, *others, *extra], label_smoothing))
        return rows

    rows = one_side(scores)
    if symmetric:
        transposed = [[scores[i][j] for i in range(n)] for j in range(n)]
        rows = [(a + b) / 2 for a, b in zip(rows, one_side(transposed), strict=True)]
    return reduced(rows, reduction)


def clip_reference(query, key, ids=None, learnable=True, **config):
    return info_nce_reference(query, key, ids, symmetric=True, learnable=learnable, **config)


def nt_xent_reference(query, key, temperature=0.5, learnable=False, normalize=True, reduction="mean", block_size=None):
    views = [v for pair in zip(query, key, strict=True) for v in pair]
    scores = products(views, views, scale_of(temperature, learnable), normalize)
    values = []
    for i, row in enumerate(scores):
        values.append(log_sum_exp([s for j, s in enumerate(row) if j != i]) - row[i ^ 1])
    rows = [(values[2 * i] + values[2 * i + 1]) / 2 for i in range(len(query))]
    return reduced(rows, reduction)


def sig_lip_reference(
    query,
    key,
    ids=None,
    temperature=0.1,
    bias=-10.0,
    learnable=True,
    pos_weight=1.0,
    normalize=True,
    reduction="mean",
    block_size=None,
):
    ids = ids or list(range(len(query)))
    scores = products(query, key, scale_of(temperature, learnable), normalize)
    bias = rounded(bias) if learnable else bias
    rows = []
    for i, row in enumerate(scores):
        terms = [
            pos_weight * softplus(-(s + bias)) if ids[i] == ids[j] else softplus(s + bias) for j, s in enumerate(row)
        ]
        rows.append(sum(terms))
    return reduced(rows, reduction)


def surrogate(name, margin):
    return {
        "logistic": softplus,
        "hinge": lambda x: max(0.0, margin + x),
        "squared_hinge": lambda x: max(0.0, margin + x) ** 2,
        "square": lambda x: (margin + x) ** 2,
    }[name]


def mann_whitney_reference(
    query,
    key,
    ids=None,
    temperature=0.05,
    pairing="global",
    surrogate_name="logistic",
    margin=1.0,
    learnable=False,
    normalize=True,
    reduction="mean",
    block_size=None,
    **renamed,
):
    phi = surrogate(renamed.get("surrogate", surrogate_name), margin)
    n = len(query)
    ids = ids or list(range(n))
    scores = products(query, key, scale_of(temperature, learnable), normalize)
    own = [[scores[i][j] for j in range(n) if ids[i] != ids[j]] for i in range(n)]
    rows = []
    for i in range(n):
        against = own[i] if pairing == "per_query" else [s for row in own for s in row]
        rows.append(sum(phi(s - scores[i][i]) for s in against) / len(against) if against else 0.0)
    if reduction == "mean" and pairing == "per_query":
        rows = [r for r, a in zip(rows, own, strict=True) if a] or [0.0]
    return reduced(rows, reduction)


def scaled(inputs):
    factors = torch.arange(1, 1 + len(inputs["query"]), dtype=torch.float64).unsqueeze(1)
    return {**inputs, "query": inputs["query"] * factors, "key": inputs["key"] * 3}


def tile_sizes(start):
    """Rows to try for the configurations of BLOCKS that begin at ``start``: small tiles are many."""
    return {start: (1, 2, 7), start + 1: (1, 2, 3), start + 2: (1, 2, 7), start + 3: (1, 2, 7)}


LENGTHS = Invariance("scaling every embedding", scaled)
LONG = torch.zeros(4, 4, 1)
BAD = (
    BadCall(ValueError, "temperature must be > 0, got 0", {"temperature": 0}),
    BadCall(ValueError, "block_size must be >= 1, got 0", {"block_size": 0}),
    BadCall(TypeError, "block_size must be an integer, got 'all'", {"block_size": "all"}),
    BadCall(ValueError, "matmul must be one of 'fp32', 'input', got 'tf32'", {"matmul": "tf32"}),
    BadCall(TypeError, "normalize must be True or False, got 1", {"normalize": 1}),
    BadCall(ValueError, "query must have shape (N, D)", inputs={"query": LONG}),
    BadCall(ValueError, "key must have shape (4, 4) to match query", inputs={"key": torch.zeros(4, 3)}),
    BadCall(TypeError, "query must be a floating point tensor", inputs={"query": torch.zeros(4, 4, dtype=torch.int64)}),
    BadCall(TypeError, "key must have the dtype of query", inputs={"key": torch.zeros(4, 4, dtype=torch.bfloat16)}),
    BadCall(
        ValueError,
        "weight must be finite and >= 0, got -1.0 at index (0,)",
        inputs={"weight": torch.tensor([-1.0, 1, 1, 1])},
    ),
)
BAD_IDS = (
    BadCall(ValueError, "ids must have shape (4,)", inputs={"ids": torch.zeros(3, dtype=torch.int64)}),
    BadCall(TypeError, "ids must be int64", inputs={"ids": torch.zeros(4)}),
)

SPECS = (
    LossSpec(
        cls=InfoNCELoss,
        function=info_nce_loss,
        kind="pairs",
        sizes=tile_sizes(1),
        configs=(
            {},
            *({"block_size": block} for block in BLOCKS),
            {"label_smoothing": 0.1, "temperature": 0.5},
            {"label_smoothing": 0.1, "temperature": 0.5, "block_size": 3},
            {"label_smoothing": 0.1, "temperature": 0.5, "block_size": (3, 3)},
            {"same_id": "exclude", "block_size": 2, "learnable": True},
            {"candidates": "explicit", "temperature": 0.3},
            {"candidates": "explicit", "temperature": 0.3, "block_size": 3},
            {"candidates": "both", "temperature": 0.3, "block_size": (5, 4), "reduction": "sum"},
            {"reduction": "none", "block_size": 3, "temperature": 0.2},
        ),
        kinds={
            5: "duplicates",
            6: "duplicates",
            7: "duplicates",
            8: "duplicates",
            9: "negatives",
            10: "negatives",
            11: "own_negatives",
        },
        golden=golden("InfoNCELoss.explicit_negatives"),
        reference=info_nce_reference,
        invariances=(LENGTHS,),
        errors=(
            *BAD,
            *BAD_IDS,
            BadCall(ValueError, "candidates must be one of 'in_batch', 'explicit', 'both'", {"candidates": "all"}),
            BadCall(ValueError, "negatives must be given for 'explicit', got None", {"candidates": "explicit"}),
            BadCall(ValueError, "negatives must be None for candidates='in_batch'", inputs={"negatives": LONG[..., 0]}),
            BadCall(
                ValueError,
                "candidates must be 'in_batch' for symmetric=True",
                {"symmetric": True, "candidates": "both"},
            ),
            BadCall(
                ValueError, "exclude must have shape (4, 4)", inputs={"exclude": torch.zeros(4, 3, dtype=torch.bool)}
            ),
        ),
        seeds=("core.InfoNCE", "000.31"),
    ),
    LossSpec(
        cls=ClipLoss,
        function=clip_loss,
        kind="pairs",
        sizes=tile_sizes(1),
        configs=(
            {},
            *({"block_size": block, "learnable": False} for block in BLOCKS),
            {"label_smoothing": 0.1, "block_size": (3, 3)},
            {"same_id": "exclude", "block_size": 2},
            {"reduction": "none", "temperature": 0.2},
        ),
        kinds={4: "duplicates", 5: "duplicates", 6: "duplicates"},
        golden=golden("ClipLoss.symmetric", "TiledInfoNCE.scale100_hard"),
        reference=clip_reference,
        invariances=(LENGTHS,),
        errors=(*BAD, *BAD_IDS),
        seeds=("core.InfoNCE", "000.31"),
    ),
    LossSpec(
        cls=NTXentLoss,
        function=nt_xent_loss,
        kind="pairs",
        sizes=tile_sizes(1),
        configs=(
            {},
            *({"block_size": block} for block in BLOCKS),
            {"reduction": "none", "block_size": 3, "learnable": True},
            {"reduction": "sum", "temperature": 0.1, "block_size": 3},
        ),
        golden=golden("NTXentLoss"),
        reference=lambda query, key, **config: nt_xent_reference(query, key, **config),
        invariances=(LENGTHS,),
        errors=BAD,
        seeds=("core.NTXent",),
    ),
    LossSpec(
        cls=SigLIPLoss,
        function=sig_lip_loss,
        kind="pairs",
        sizes=tile_sizes(1),
        configs=(
            {},
            *({"block_size": block, "learnable": False, "bias": -1.0} for block in BLOCKS),
            {"pos_weight": 2.0, "block_size": (3, 3), "bias": 0.5},
            {"pos_weight": 2.0, "bias": -6.0, "reduction": "sum"},
            {"reduction": "none", "block_size": 3, "bias": -2.0},
        ),
        kinds={4: "duplicates", 5: "duplicates", 6: "duplicates"},
        golden=golden("SigLIPLoss"),
        reference=sig_lip_reference,
        invariances=(LENGTHS,),
        errors=(
            *BAD,
            *BAD_IDS,
            BadCall(ValueError, "pos_weight must be >= 0, got -1", {"pos_weight": -1}),
            BadCall(ValueError, "bias must be finite, got inf", {"bias": math.inf}),
        ),
        seeds=("003.10",),
    ),
    LossSpec(
        cls=MannWhitneyLoss,
        function=mann_whitney_loss,
        kind="pairs",
        sizes={**tile_sizes(1), **tile_sizes(6)},
        configs=(
            {},
            *({"block_size": block} for block in BLOCKS),
            {"pairing": "per_query", "temperature": 0.3},
            *({"pairing": "per_query", "temperature": 0.3, "block_size": block} for block in BLOCKS[:3]),
            {"surrogate": "squared_hinge", "temperature": 0.7, "block_size": (3, 3)},
            {"surrogate": "square", "margin": 0.5, "temperature": 0.7, "block_size": 3, "reduction": "sum"},
            {"surrogate": "hinge", "pairing": "per_query", "temperature": 0.7, "block_size": 3},
            {"reduction": "none", "temperature": 0.3, "learnable": True},
            {"reduction": "none", "pairing": "per_query", "temperature": 0.3, "block_size": (3, 3)},
        ),
        kinds={9: "duplicates", 10: "duplicates", 11: "duplicates", 12: "duplicates", 13: "duplicates"},
        golden=golden("MannWhitneyLoss.in_batch_global"),
        reference=mann_whitney_reference,
        invariances=(LENGTHS,),
        errors=(
            *BAD,
            *BAD_IDS,
            BadCall(ValueError, "pairing must be one of 'global', 'per_query', got 'all'", {"pairing": "all"}),
            BadCall(ValueError, "surrogate must be one of 'logistic'", {"surrogate": "exponential"}),
            BadCall(ValueError, "margin must be >= 0, got -1", {"margin": -1}),
        ),
        seeds=("000.15",),
    ),
)

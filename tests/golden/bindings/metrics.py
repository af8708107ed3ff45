"""Calls for the golden records of ranking and retrieval metrics."""

import torch

from trainkit.metrics import EmbeddingMargin, PairAUROC, pair_auroc


def value(metric, **inputs):
    metric.update(**inputs)
    return metric.compute()


def auroc(record, pairing):
    inputs, params = record["inputs"], record["params"]
    rows = {"scores": torch.tensor(inputs["scores"], dtype=torch.float64), "target": torch.tensor(inputs["labels"])}
    got = {"global": value(PairAUROC(), **rows)}
    if pairing == "global":
        return got | {"value": got["global"]}
    index = torch.tensor(inputs["indexes"])
    queries = [{k: v[index == q] for k, v in rows.items()} for q in index.unique()]
    each = [pair_auroc(**own) for own in queries if own["target"].any() and not own["target"].all()]
    metric = PairAUROC(pairing="per_query", empty_target_action=params["empty_target_action"])
    return got | {"value": value(metric, **rows, index=index), "per_query": torch.stack(each)}


def margin(record):
    query, key = (torch.tensor(record["inputs"][name], dtype=torch.float64) for name in ("q", "d"))
    target = torch.tensor(record["inputs"]["relevance"]).bool()
    return {"value": torch.stack(list(value(EmbeddingMargin(), query=query, key=key, target=target).values()))}


NAMES = {
    "RetrievalAUROC.global_ties": lambda record: auroc(record, "global"),
    "RetrievalAUROC.per_query": lambda record: auroc(record, "per_query"),
    "RetrievalAUROC.per_query_ties": lambda record: auroc(record, "per_query"),
    "EmbeddingMargin": margin,
}

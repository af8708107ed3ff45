"""Metrics of ranking and retrieval: ``torchmetrics.Metric`` classes with functional forms, the same on any ranks."""

from trainkit.metrics.embedding_margin import *
from trainkit.metrics.mean_reciprocal_rank import *
from trainkit.metrics.pair_auroc import *
from trainkit.metrics.recall_at_k import *

"""Recipes: LightningModules and DataModules that run from a config, one short file a task."""

from .data.retrieval import RetrievalData as RetrievalData
from .encoders import DualEncoder as DualEncoder
from .retrieval import RetrievalModule as RetrievalModule
from .retrieval_answers import RetrievalAnswers as RetrievalAnswers
from .retrieval_baselines import RetrievalBaselines as RetrievalBaselines

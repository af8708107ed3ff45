"""Recipes: LightningModules and DataModules that run from a config, one short file a task."""

from .classification import ClassificationModule as ClassificationModule
from .classification_callbacks import ClassPredictions as ClassPredictions
from .data.classification import ClassificationData as ClassificationData
from .data.retrieval import RetrievalData as RetrievalData
from .encoders import DualEncoder as DualEncoder
from .networks import MLP as MLP
from .networks import ConvNet as ConvNet
from .retrieval import RetrievalModule as RetrievalModule
from .retrieval_answers import RetrievalAnswers as RetrievalAnswers
from .retrieval_baselines import RetrievalBaselines as RetrievalBaselines

"""Losses: ``nn.Module`` classes with functional forms, exact on any number of ranks."""

from trainkit.losses.classification.dual_focal import *
from trainkit.losses.classification.focal import *
from trainkit.losses.classification.sigmoid_focal import *
from trainkit.losses.classification.smoothed_cross_entropy import *
from trainkit.losses.combined import *
from trainkit.losses.contrastive.clip import *
from trainkit.losses.contrastive.info_nce import *
from trainkit.losses.contrastive.nt_xent import *
from trainkit.losses.contrastive.sig_lip import *
from trainkit.losses.ranking.bpr import *
from trainkit.losses.ranking.mann_whitney import *
from trainkit.losses.ranking.pairwise_auc import *

"""Sums over all positive x negative pairs of scores, in time linear in the scores up to a sort."""

from trainkit._core.score_pairs.engine import *

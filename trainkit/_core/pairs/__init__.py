"""Pair operators: losses over all pairs of two sets of embeddings, without the matrix of their scores."""

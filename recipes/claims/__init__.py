"""Functions behind claims that are no run of a recipe: each takes a seed and gives numbers by name."""

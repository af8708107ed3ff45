"""Recipes: LightningModules and DataModules for the bundled tasks, installed as ``trainkit.recipes``."""

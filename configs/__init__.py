"""Configs: one YAML file per runnable example, installed as ``trainkit.configs``."""

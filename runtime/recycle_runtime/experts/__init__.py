"""Mixtures of experts whose experts are shared among the workers that hold the same layers."""

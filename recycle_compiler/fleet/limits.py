"""How much users may ask a simulation for."""

MOST_LAYERS = 1 << 16
"""Of a model: as many as the text of a job may say."""

"""recyclec: a compiler from a training job to pipeline schedules that survive failures."""

__version__ = "0.1.0"

"""The version of recyclec; it is part of every bundle."""

__version__ = "0.1.0"

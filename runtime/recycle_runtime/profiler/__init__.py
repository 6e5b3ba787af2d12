"""Measures what the stages of a program cost on this machine: `recycle-run profile`."""

from recycle_runtime.profiler.measure import Options, profile
from recycle_runtime.profiler.report import Profile, profile_table

__all__ = ["Options", "Profile", "profile", "profile_table"]

"""Explanations: the length of a plan, changes between two plans, the time of a run against its plan."""

"""Planned against actual: where the time of a real run went, read from its trace."""

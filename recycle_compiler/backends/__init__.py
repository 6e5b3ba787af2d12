"""Backends: programs become the files that the runtime loads."""

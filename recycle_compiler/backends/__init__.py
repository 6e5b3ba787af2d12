"""Backends: streams become the files that the runtime loads."""

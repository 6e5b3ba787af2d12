"""The user's program: loading it, checking it, cutting it into stages, its micro-batches."""

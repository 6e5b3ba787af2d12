"""A page that shows a run while it goes on, and its numbers for Prometheus and TensorBoard."""

"""Ways to survive failures, one module each; `fleet/registry.py` knows their names."""

"""Ways to survive failures, one module each; `fleet/policy.py` has the table of their names."""

"""Which problem to solve: every number of failures, where they are placed, slow workers, baselines."""

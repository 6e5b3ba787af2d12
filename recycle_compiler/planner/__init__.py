"""Choice of problems to solve: every number of failures, their placement, slow workers, baselines."""

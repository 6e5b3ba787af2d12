"""When every op runs: the timing problem of a graph, lower bounds, list scheduling, search, and a MILP."""

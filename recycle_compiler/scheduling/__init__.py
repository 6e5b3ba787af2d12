"""Times of ops: the timing problem of a graph, lower bounds, list scheduling, search, and a MILP."""

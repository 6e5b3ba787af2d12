"""An exact solver that shares nothing with the planner, and the optima it has proven."""

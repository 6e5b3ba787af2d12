"""The timing problem as a mixed-integer program; the only folder that imports pyomo and highspy."""

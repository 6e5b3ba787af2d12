"""The independent check behind `recyclec verify`: shares no code with the planner, reads only the bundle."""

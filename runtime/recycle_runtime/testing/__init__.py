"""Injected faults: timetables, chaos, and what a worker does to itself when told to."""

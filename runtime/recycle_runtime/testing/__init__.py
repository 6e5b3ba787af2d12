"""Injected faults: timetables, chaos, and faults that a worker injects into itself."""

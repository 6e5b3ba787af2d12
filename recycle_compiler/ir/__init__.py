"""Levels of the compiler: job, graph, schedule, program; values only, each with a text form and a verifier."""

"""Levels of the compiler: job, graph, schedule, program; values, each with a text and a verifier."""

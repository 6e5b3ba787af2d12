"""Levels of the compiler: job, graph, schedule, streams; values, each with a text and a verifier."""

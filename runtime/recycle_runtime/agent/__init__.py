"""One process on every node: it starts worker processes, watches them, and tells the coordinator.

board       signs of life, in memory that the processes share
watch       which of them has ended or hangs
agent       the loop
"""

"""One process on every node: it starts and monitors worker processes, and reports to the coordinator.

watch       which of them has ended or hangs
agent       the loop
relay       what they say to the coordinator, where that is passed on here
process_table   which worker process runs where, for the agent after this one
preload     what all of them would load, loaded once before they are forked
"""

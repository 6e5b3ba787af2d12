"""A worker process: trains with its stream, and survives the failures of other workers.

lifecycle         from the start of the process to its end, and its last words
process           the main loop: orders of the coordinator, one generation after the other
generation        one group of workers with one plan: met, trained in, left
requests          where the user's script and the engine, which trains, meet
link              the line to the coordinator
takeover          another thread goes on in place of one that waits in vain
connections       sockets of the group, which an order to leave breaks off
reach             which hosts do not answer
heartbeat         signs of life, for the agent
state_transfer    the state of a chunk as bytes, from one process to another
donor, joiner     the same while the other workers train
checkpoints       what a worker does with them
fixed_plan        a worker without recovery
options           the options of all of them at their start
"""

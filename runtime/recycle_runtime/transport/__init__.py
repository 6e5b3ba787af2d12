"""Transports between workers: messages between neighbours, sums among peers.

interface    what a transport is, and who is who among the processes
gloo         on the CPU, over any network
nccl         between processes with a GPU each
cuda_ipc     between processes that share a GPU
choose       which of them a job uses
guarded      a transport whose failures are those of talking, and which shows when it waits
sockets      connections that another thread can break off
messages     slots of memory that messages travel through
user_group   a process group for the program's own collectives
ending_work  what the program waits for in it, which ends when the group is given up
"""

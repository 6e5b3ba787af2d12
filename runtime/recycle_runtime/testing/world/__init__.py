"""A simulated world: a whole job in one thread, with one seed, repeatable to the last event.

Coordinator, agents and worker processes are the real ones: the code that runs in production. What lies around
them is simulated: clocks, the network, disks, the kernel's processes, and torch, whose place arithmetic on
whole numbers takes. See docs/simulated-world.md.
"""

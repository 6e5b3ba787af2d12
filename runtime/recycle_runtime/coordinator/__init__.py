"""The coordinator: tracks workers, chooses plans, orders regroupings. Standard library only; it never trains.

service             the process: sockets, timers, files around the state machine
state_machine       events in, orders out: the order of things
events              what happens, and what has to be done about it
regrouping          a new generation: the step to go on from, moves, the orders to each process
membership          the worker processes, their reports and where they wait
checkpoints         when checkpoints are taken; `checkpoint_files` touches the disk
connections, agents, reach      who is connected, which node runs what, who reaches whom
relays              connections of workers that go through their agents
adaptation          what a job changes of its own accord; `drift`, `measured_job`, `replanning` serve it
plans               plans on demand and ahead, and their files
metrics             steps and recoveries, measured
journal             what a restarted coordinator has to know
hooks               where tests inject faults; empty in production
"""

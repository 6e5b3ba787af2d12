"""The coordinator: tracks workers, chooses plans, orders regroupings. Needs no torch; it never trains.

service             the process: carries events in and orders out, and decides nothing
attendance          who is a member, who is waited for, who has failed, who is started
state_machine       the generations of a job: events in, orders out
events              what happens, and what has to be done about it
participant         a part of the job beside its generations; `participants` has the list of all:
                    step_rows, skipped_steps, peer_digests, model_parameters, scripts, neighbour_copies,
                    checkpoints, saves, last_save, layer_moves
outlives            what is written down, said again or not needed after the coordinator was killed
journal             the file; `last_generation` is what a restarted coordinator reads there first
regrouping          a new generation: the step to go on from, moves, the orders to each process, its times
membership          the worker processes, their reports and where they wait
connections, agents, reach      who is connected, which node runs what, who reaches whom
relays              connections of workers that go through their agents
reconfiguration     which plan runs next on which workers: the best of all candidates
candidates          their form; moves of workers, and re-cuts
measured_plans      plans for measured op times as candidates; `drift`, `measured_job`, `replanning` serve it
plans               plans on demand and ahead, and their files
hooks               where tests inject faults; empty in production
"""

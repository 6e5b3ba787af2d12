"""Who lives, where they stand, and what they do next. Standard library only; the coordinator never trains.

decision        from what survivors hold to the step they go on from
plan_book       which plan fits the workers that live, and who has which role in it
roster          the members, their reports and where they wait
coordinator     events in, orders out: the order of things
step_rows       what workers say about a step, put together
recoveries      how long each change took, and what was lost
journal         what a coordinator that starts again has to know
planner         plans on demand, by running the compiler as a process
service         the coordinator as a process: sockets, store, journal
"""

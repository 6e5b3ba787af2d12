"""How the processes of a job talk to its coordinator, and the store they meet at.

wire            JSON messages on a socket, after both ends have proved that they know the job's token
server          many such connections in one loop
store_table     keys and values, and who waits for them: the coordinator's side
remote_store    the same as a torch store: a worker's side
"""

"""Protocol between the processes of a job and its coordinator, and the store they meet at.

framing         JSON messages on a socket, after both ends have proved that they know the job's token
records         each message signed and counted, so that nobody in between can add, change or leave out any
access          the job's tokens, which may be exchanged while it runs, and whether to speak TLS
tls             connections that nobody else can read, on request
channel         a client's end of such a connection
server          many such connections in one loop
refusals        what the log says of those that were refused
store_table     keys and values, and who waits for them: the coordinator's side
remote_store    the same as a torch store: a worker's side
"""

"""State of layers on its way: to a checkpoint, to the memory of another node, to a worker that joins or takes
layers for another cut.

    names          shards of a state, by name; what is said when one cannot be used
    tree           a state taken apart: plain values as JSON, and tensors by name
    layer_state    the state of one layer: taken from chunks, copied, and loaded again
    host_copy      tensors, copied to memory that is used again each time
    image          states as bytes, in memory and on the wire

Nothing that is read is executed or unpickled. `names` needs the standard library alone.
"""

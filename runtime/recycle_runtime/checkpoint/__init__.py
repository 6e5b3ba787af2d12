"""Checkpoints: what outlives the loss of every peer of a stage, and a job that is stopped.

sealed_json     JSON files that are whole or not there, and show when they were damaged
manifest        what is known about a complete checkpoint
shelf           the folder of a job's checkpoints: the newest, new ones, and the end of old ones
beginning       where a run begins: with the newest checkpoint, or from the first step
opening         the same for a coordinator that starts
saving          when checkpoints are taken, and when one is complete: the coordinator's part
tree            a state as JSON, with its tensors taken out
host_copy       tensors, copied to memory that is used again each time
storage         tensors in a file, as torch.distributed.checkpoint writes and reads them
part            one stage, or one tensor-parallel part of it, in a folder
stage_state     a stage as it is between two steps, and back
writer          copies at the right moment, and a thread that writes
worker_side     what a worker process does with all of this

The first six need the standard library alone.
"""

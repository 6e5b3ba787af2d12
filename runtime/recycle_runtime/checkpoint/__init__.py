"""Checkpoints: what outlives the failure of every peer of a stage, and a job that is stopped.

    manifest             what is known about a complete checkpoint; JSON files that show damage
    checkpoint_folder    the folder of a job's checkpoints, and where in it a run begins
    storage              a shard, the state of one layer or stage and tensor-parallel rank, in a folder
    writer               a chunk's state to a checkpoint and back

The first two need no torch. When checkpoints are taken is for the coordinator to say.
"""

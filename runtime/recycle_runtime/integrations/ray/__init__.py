"""A job on a Ray cluster: coordinator and agents are actors, which start the processes of the job.

    import ray
    from recycle_runtime.integrations.ray import train

    ray.init("auto")
    result = train("figure3.plan", program="train.py", steps=20000, workers_per_node=4, state="/shared/state")
    print(result.steps[-1].loss)

calls   the few calls of Ray that are made
actors  what runs on the nodes; knows nothing of Ray
job     the loop of the driver
"""

from recycle_runtime.integrations.ray.calls import RayMissingError as RayMissingError
from recycle_runtime.integrations.ray.job import RayJob as RayJob
from recycle_runtime.integrations.ray.job import Result as Result
from recycle_runtime.integrations.ray.job import start as start
from recycle_runtime.integrations.ray.job import train as train
from recycle_runtime.integrations.words import JobError as JobError

"""Commands of `recycle-run`, one module each, imported only when that command is run.

Every module has `add_arguments(parser)` and `run(arguments, output) -> int`, which returns the exit code.
Torch is loaded only by commands that train, after their arguments have been checked.
"""

COMMANDS = {
    "local": "train with every worker of a plan on this machine",
    "coordinator": "coordinate a job: which workers are alive, which plan runs, where training resumes",
    "agent": "start and monitor the worker processes of this node, as the coordinator asks",
    "node": "run this node of a job as Slurm, torchrun, Kubernetes or MASTER_ADDR say; the first coordinates",
    "worker": "run one worker of a plan; the other workers run elsewhere and meet it at the store",
    "profile": "measure what the stages of a program cost on this device, for `profile from` in a job",
    "export": "write the model of a checkpoint as safetensors or torch files, under its own names",
    "streams": "list the plans of a bundle, the workers of a plan, or the instructions of a worker",
    "doctor": "report versions, devices and limits of this machine, and what is wrong with them",
    "completion": "write a script that completes commands and options in bash, zsh or fish",
}

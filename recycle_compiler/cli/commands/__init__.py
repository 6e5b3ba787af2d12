"""Commands of `recyclec`, one module each, imported only when that command is run.

Every module has `add_arguments(parser)` and `run(arguments, output) -> int`, which returns the exit code.
"""

COMMANDS = {
    "compile": "plan for every number of failures up to the job's tolerance, into one bundle",
    "check": "check a job file without planning",
    "fmt": "rewrite a job file in canonical form",
    "show": "show one plan of a bundle",
    "explain": "explain why a plan takes as long as it does, and what would make it faster",
    "plan": "plan for exactly these failed or slow workers",
    "retime": "compute how long a step of a plan takes with the op times of another job",
    "diff": "compare two bundles or two schedule texts, or a plan with the trace of a run",
    "verify": "check a bundle against every rule, from the file alone",
    "simulate": "simulate throughput under a failure trace, compared with other fault-tolerance systems",
    "advise": "advise on machines, spares, copies and checkpoints of a job for a failure trace",
    "play": "serve a page with the numbers of a job as sliders, and its plan drawn as they move",
    "launch": "generate a Slurm batch script or a Kubernetes manifest that starts a job",
    "reproduce": "run what a crash of recyclec left behind",
    "doctor": "report versions, devices and limits of this machine, and what is wrong with them",
    "completion": "write a script that completes commands and options in bash, zsh or fish",
}

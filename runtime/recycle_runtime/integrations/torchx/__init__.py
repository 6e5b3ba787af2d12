"""A component of torchx: a coordinator and agents, for the schedulers that torchx knows.

    torchx run -s local_cwd $(python -m recycle_runtime.integrations.torchx) \\
        --plan figure3.plan --program train.py --steps 20000 --workers_per_node 4 --state /shared/state

Not registered as an entry point: torchx would no longer offer its own components then.
"""

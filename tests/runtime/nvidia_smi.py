"""Output of `nvidia-smi -L` on several machines, and a command that prints it."""

from pathlib import Path

H200 = "GPU 0: NVIDIA H200 (UUID: GPU-fa529bc3-df9c-8e3c-22fb-c95e99d1c9dc)\n"
MIG = (
    H200
    + """\
  MIG 1g.18gb     Device  0: (UUID: MIG-3a49c8a9-0f9f-5f7d-b321-d50e2e18cc15)
  MIG 1g.18gb     Device  1: (UUID: MIG-7571955c-06af-503e-af5c-ecaaec272973)
  MIG 2g.35gb+me  Device  2: (UUID: MIG-7599efae-06af-503e-af5c-ecaaec272973)
"""
)
FOUR = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa000000-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aa111111-0000-0000-0000-000000000001)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-bb222222-0000-0000-0000-000000000002)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-cc333333-0000-0000-0000-000000000003)
"""
MIXED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa000000-0000-0000-0000-000000000000)
  MIG 3g.40gb     Device  0: (UUID: MIG-0a000000-0000-5000-8000-000000000000)
  MIG 3g.40gb     Device  1: (UUID: MIG-0b000000-0000-5000-8000-000000000001)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bb111111-0000-0000-0000-000000000001)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cc222222-0000-0000-0000-000000000002)
  MIG 7g.80gb     Device  0: (UUID: MIG-2a000000-0000-5000-8000-000000000002)
"""
LEGACY = """\
GPU 0: A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
  MIG 3g.20gb Device 0: (UUID: MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/1/0)
  MIG 3g.20gb Device 1: (UUID: MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/13/0)
"""


def fake_nvidia_smi(folder: Path, listing: str, status: int = 0) -> None:
    """A command in this folder that prints this whatever it is asked."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{listing}'\nexit {status}\n")
    command.chmod(0o755)

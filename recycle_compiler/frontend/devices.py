"""Data-sheet figures of the GPUs that the analytic cost model knows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU in its usual server; rates per second, links per GPU and direction."""

    name: str
    peak_flops: int
    """Dense bf16 tensor-core operations."""
    memory_bandwidth: int
    """Bytes of HBM."""
    node_bandwidth: int
    """Bytes over NVLink, between GPUs of one server: tensor parallelism."""
    network_bandwidth: int
    """Bytes over the network card: between stages and between pipelines."""


DEVICES = {
    device.name: device
    for device in (
        Device("a100", 312 * 10**12, 2_039 * 10**9, 300 * 10**9, 25 * 10**9),
        Device("h100", 989 * 10**12, 3_350 * 10**9, 450 * 10**9, 50 * 10**9),
        Device("h200", 989 * 10**12, 4_800 * 10**9, 450 * 10**9, 50 * 10**9),
    )
}

DEFAULT_EFFICIENCY_PPM = 450_000
"""Share of the peak that large matrix products reach in training, in millionths."""

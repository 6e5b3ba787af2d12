"""Cost of a copy in the memory of a node: the pause of training, and the time beside it.

    python -m bench.neighbour_copies [MEGABYTES ...]

The state is that of AdamW: parameters and two moments, in float32. The first copy into each of the two places
needs new memory, which a thread gets beforehand; later ones use it again. Seconds are those of the CPU, and
`plain` is a copy into memory of the process itself, for comparison.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from recycle_runtime.protocol.node_memory import SLOTS, open_memory
from recycle_runtime.state.host_copy import HostCopy
from recycle_runtime.state.image import MemoryImage, read_file
from recycle_runtime.state.layer_state import LayerState
from recycle_runtime.state.tree import Tensors, take_apart

_TENSORS = 24
_COPIES = 6
_MEGABYTE = 1 << 20


def main(sizes: list[int]) -> None:
    print("state MiB   copy   memory s   pause s   beside s   read s   plain s   held MiB")
    for size in sizes:
        _measure(size)


def _measure(size: int) -> None:
    numbers = size * _MEGABYTE // 4 // 3 // _TENSORS
    state = {
        f"layer{number}": {
            "weight": torch.randn(numbers),
            "moments": [torch.randn(numbers) for _ in range(2)],
        }
        for number in range(_TENSORS)
    }
    tree, tensors = take_apart(state)
    with tempfile.TemporaryDirectory() as folder:
        memory = open_memory(Path(folder), 1)
    places = [MemoryImage(memory.file(0, "own", slot)) for slot in range(SLOTS)]
    plain = HostCopy()
    plain.take(tensors)
    for copy in range(_COPIES):
        file, image_file = memory.file(0, "own", copy % SLOTS), places[copy % SLOTS]
        plain_began = time.process_time()
        plain.take(tensors)
        plainly, began = time.process_time() - plain_began, time.process_time()
        os.posix_fallocate(file, 0, sum(4 * tensor.numel() + 64 for tensor in tensors.values()))
        has_memory = time.process_time()
        taken = image_file.take({f"all/{name}": tensor for name, tensor in tensors.items()})
        is_copied = time.process_time()
        image_file.finish(f"copy-{copy:08}.0.0", [LayerState("all", {}, tree, _own(taken))])
        is_complete = time.process_time()
        image = read_file(file)
        assert image is not None
        image.state("all", {})
        is_read = time.process_time()
        held = sum(os.fstat(each).st_blocks * 512 for each in memory.files) / _MEGABYTE
        times = (
            has_memory - began,
            is_copied - has_memory,
            is_complete - is_copied,
            is_read - is_complete,
            plainly,
        )
        cells = "   ".join(f"{each:{width}.3f}" for each, width in zip(times, (8, 7, 8, 6, 7), strict=True))
        print(f"{size:9}   {copy:4}   {cells}   {held:8.0f}")
    for file in memory.files:
        os.close(file)


def _own(taken: Tensors) -> Tensors:
    return {name.removeprefix("all/"): tensor for name, tensor in taken.items()}


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [64, 512])

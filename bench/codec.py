"""Cost of the format of streams: size, and time to decode in plain Python; `python -m bench.codec`.

    python -m bench.codec --bundle scale-2048.plan   bundles that were compiled before; may be repeated

Without a bundle, figure3, scale-2048 and wide-16384 are compiled first, which takes minutes.
"""

import argparse
import lzma
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.measure import RECYCLEC, run
from bench.report import Section, job_path
from recycle_compiler.ir.bundled import counted_from, read_columns
from recycle_runtime.plan.bundle import PACKING, Bundle
from recycle_runtime.plan.bundle_index import pack_index
from recycle_runtime.plan.codec import NEIGHBOUR, PIPELINE, Columns, decode_stream

TITLE = "The format of streams"
NAMES = ("figure3", "scale-2048", "wide-16384")
REPEATS = 3

Code = Callable[[bytes], bytes]


class Packing(NamedTuple):
    """A way to make columns small."""

    name: str
    pack: Code
    unpack: Code


def _pack_by_zlib(data: bytes) -> bytes:
    return zlib.compress(data, PACKING)


PACKINGS = (
    Packing("raw", bytes, bytes),
    Packing("zlib", _pack_by_zlib, zlib.decompress),
    Packing("lzma", lzma.compress, lzma.decompress),
)


def section(bundles: Iterable[Path]) -> Section:
    """Rows for each bundle and packing: of plain numbers, and of differences as bundles have them."""
    return Section(
        title=TITLE,
        command="python -m bench.codec",
        words=(
            "Kilobytes of the whole bundle; CPU time in plain Python, as the runtime decodes, of the plan in "
            f"the middle of the bundle: one worker's stream, all streams. Best of {REPEATS}."
        ),
        columns=("job", "format", "kB", "pack s", "one stream ms", "whole plan s", "workers"),
        rows=tuple(
            row(path, packing) for path in bundles for row in (_plain_row, _row) for packing in PACKINGS
        ),
    )


def _plain_row(path: Path, packing: Packing) -> tuple[str, ...]:
    """Numbers as they are; how long it takes to read them was not worth a decoder."""
    bundle = Bundle.read(path)
    plans = [_numbers(bundle, plan) for plan in range(len(bundle.plans))]
    packed, seconds = _packed(bundle, plans, packing)
    size = f"{sum(map(len, packed)) / 1000:,.1f}"
    return path.stem, f"numbers, {packing.name}", size, f"{seconds:.1f}", "-", "-", "-"


def _numbers(bundle: Bundle, plan: int) -> bytes:
    """The columns of a plan without differences."""
    columns = read_columns(bundle, plan)
    home = np.repeat([pipeline for pipeline, _ in bundle.workers(plan)], bundle.layouts[plan].lengths)
    for place in (PIPELINE, NEIGHBOUR):
        columns[place] = counted_from(columns[place], -home, bundle.pipelines)
    widths = bundle.layouts[plan].widths
    stored = ((column + 1).astype(f"<u{width}") for column, width in zip(columns, widths, strict=True))
    return b"".join(column.tobytes() for column in stored)


def _packed(bundle: Bundle, plans: list[bytes], packing: Packing) -> tuple[list[bytes], float]:
    """The index and the plans, and the seconds that packing them took."""
    began = time.process_time()
    packed = [packing.pack(data) for data in (pack_index(bundle), *plans)]
    return packed, time.process_time() - began


def _row(path: Path, packing: Packing) -> tuple[str, ...]:
    bundle = Bundle.read(path)
    plans = [bundle.columns(plan).data for plan in range(len(bundle.plans))]
    packed, seconds = _packed(bundle, plans, packing)
    plan = len(plans) // 2
    workers = bundle.workers(plan)
    one = _best(
        lambda: _decode(bundle, plan, packing.unpack(packed[1 + plan]), workers[len(workers) // 2 :][:1])
    )
    whole = _best(lambda: _decode(bundle, plan, packing.unpack(packed[1 + plan]), workers))
    return (
        path.stem,
        f"differences, {packing.name}",
        f"{sum(map(len, packed)) / 1000:,.1f}",
        f"{seconds:.1f}",
        f"{1000 * one:.1f}",
        f"{whole:.2f}",
        str(len(workers)),
    )


def _decode(bundle: Bundle, plan: int, data: bytes, workers: Iterable[tuple[int, int]]) -> None:
    layout = bundle.layouts[plan]
    columns = Columns(data, layout.widths, sum(layout.lengths))
    places = {worker: place for place, worker in enumerate(bundle.workers(plan))}
    for worker in workers:
        first = sum(layout.lengths[: places[worker]])
        decode_stream(columns, first, first + layout.lengths[places[worker]], worker, bundle.shape)


def _best(work: Callable[[], None]) -> float:
    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(REPEATS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, action="append", metavar="PLAN")
    given: list[Path] | None = parser.parse_args().bundle
    if given:
        print(section(given).text())
        return
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder) / f"{name}.plan" for name in NAMES]
        for name, path in zip(NAMES, made, strict=True):
            run([RECYCLEC, "--quiet", "compile", job_path(name), "-o", path])
        print(section(made).text())


if __name__ == "__main__":
    main()

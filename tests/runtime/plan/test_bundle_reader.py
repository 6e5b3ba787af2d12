"""Reading bundles with the standard library alone: what is there, and what is refused."""

import hashlib
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_runtime.plan import bundle as reader
from recycle_runtime.plan.bundle import Bundle, BundleError, ColumnLayout, PlanEntry, join_bundle
from recycle_runtime.plan.bundle_index import Index, pack_index
from recycle_runtime.plan.codec import LARGEST_PLAN
from recycle_runtime.plan.isa import NONE, Instruction, Opcode

RUNTIME = Path(reader.__file__).resolve().parents[2]
WIDTHS = (1,) * 7


def encode(*streams: Sequence[Instruction]) -> bytes:
    """Streams in which every opcode comes once: there is nothing to take differences from."""
    rows = [instruction for stream in streams for instruction in stream]
    return bytes(number + 1 for column in zip(*rows, strict=True) for number in column)


def layout(data: bytes, *lengths: int) -> ColumnLayout:
    return ColumnLayout(WIDTHS, lengths, hashlib.sha256(data).digest())


FORWARD = (Instruction(Opcode.LOAD, 0, 0, 0, 0), Instruction(Opcode.FORWARD, 0, 0, 0, 0))
STEP = (Instruction(Opcode.OPTIMIZER, 1),)
PLANS = (encode(FORWARD, FORWARD, STEP, STEP), encode(FORWARD, STEP, STEP))
HEALTHY = PlanEntry((), (0, 5), 10, 12, 12, "load of stage 0", False)
INDEX = Index(
    compiler_version="1.2",
    job_source="job tiny {}",
    job_text="job tiny",
    stages=2,
    pipelines=2,
    tensor=1,
    microbatches=1,
    chunk_stages=(0, 1),
    plans=(HEALTHY, HEALTHY._replace(failed=((1, 0),), cut_short=True)),
    layouts=(layout(PLANS[0], 2, 2, 1, 1), layout(PLANS[1], 2, 1, 1)),
)
DATA = join_bundle(INDEX, PLANS)
AGAIN = "; copy it again, or compile the job again"


def test_what_is_there() -> None:
    bundle = Bundle.parse(DATA)
    assert bundle.format_version == 3
    assert bundle.chunk_stages == (0, 1)
    assert bundle.content_hash == hashlib.sha256(pack_index(INDEX)).hexdigest()
    assert bundle.plans == INDEX.plans
    assert bundle.workers(0) == ((0, 0), (1, 0), (0, 1), (1, 1))
    assert bundle.workers(1) == ((0, 0), (0, 1), (1, 1))
    assert bundle.stream(0, (1, 0)) == (
        Instruction(Opcode.LOAD, 0, 1, 0, 0),
        Instruction(Opcode.FORWARD, 0, 1, 0, 0, NONE, NONE),
    )
    assert bundle.stream(1, (1, 1)) == (Instruction(Opcode.OPTIMIZER, 1),)
    assert [bundle.length(1, worker) for worker in bundle.workers(1)] == [2, 1, 1]
    assert bundle.instructions == 10
    assert bundle.find((0, 0)) == 0
    assert bundle.find([1, 0]) == 1
    assert bundle.find([0, 1]) is None


@pytest.mark.parametrize("worker", [(1, 0), (2, 0), (0, 2), (-1, 1)])
def test_a_worker_that_does_not_live(worker: tuple[int, int]) -> None:
    with pytest.raises(KeyError, match="no live worker"):
        Bundle.parse(DATA).stream(1, worker)


def test_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(DATA)
    assert Bundle.read(path).job_source == "job tiny {}"
    with pytest.raises(FileNotFoundError):
        Bundle.read(tmp_path / "b.plan")
    with pytest.raises(BundleError, match="not a regular file"):
        Bundle.read(tmp_path)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(DATA)
    monkeypatch.setattr(reader, "LARGEST_FILE", 50)
    with pytest.raises(BundleError, match=f"too large: {len(DATA)} bytes, allowed are 50"):
        Bundle.read(path)
    with pytest.raises(ValueError, match="allowed are 50"):
        join_bundle(INDEX, PLANS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a bundle: it is empty; `recyclec compile JOB -o PLAN` writes one"),
        (b"job figure3 {", "not a bundle: it does not begin like one"),
        (b"PK\x03\x04" + bytes(100), "not a bundle: it does not begin like one"),
        (DATA.replace(b"\r\n", b"\n", 1), "not a bundle: it does not begin like one"),
        (DATA[:5], f"truncated: 5 bytes long, at least 54 expected{AGAIN}"),
        (DATA[:-1], f"truncated: {len(DATA) - 1} bytes long, expected {len(DATA)}{AGAIN}"),
        (DATA + b"\0", f"followed by other bytes: {len(DATA) + 1} bytes long, expected {len(DATA)}"),
        (DATA[:8] + b"\4\0" + DATA[10:], "made by a newer recyclec: format 4, this one reads up to 3"),
        (
            DATA[:8] + b"\1\0" + DATA[10:],
            "made by an older recyclec: format 1, this one reads 3; compile the job again",
        ),
        (DATA[:8] + b"\0\0" + DATA[10:], "damaged: format 0 does not exist"),
        (DATA[:-1] + bytes([DATA[-1] ^ 1]), f"damaged: the checksum does not match{AGAIN}"),
    ],
)
def test_what_is_refused_in_one_sentence(data: bytes, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.parse(data)
    assert str(caught.value) == message


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    for length in range(len(DATA)):
        with pytest.raises(BundleError):
            Bundle.parse(DATA[:length])
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BundleError):
            Bundle.parse(bytes(flipped))


def sealed(content: bytes, packed: Sequence[bytes]) -> bytes:
    """A bundle of this index and these packed plans, with sizes, a hash and a checksum that are right."""
    blocks = [zlib.compress(content), *packed]
    sizes = struct.pack(f"<{len(blocks)}I", *map(len, blocks))
    head = hashlib.sha256(content).digest() + struct.pack("<II", len(content), len(packed))
    rest = head + sizes + b"".join(blocks)
    return DATA[:10] + struct.pack("<I", zlib.crc32(rest)) + rest


PACKED = [zlib.compress(plan) for plan in PLANS]
LAYOUT = INDEX.layouts[0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (replace(INDEX, stages=0), "the number of stages is 0, which must be from 1 to 1048575"),
        (replace(INDEX, pipelines=1 << 19), "it ends before the streams of"),
        (replace(INDEX, stages=1 << 19), "a stage has no chunk"),
        (replace(INDEX, stages=1 << 19, chunk_stages=tuple(range(1 << 19))), "ends before the release of"),
        (replace(INDEX, plans=(), layouts=(), chunk_stages=(0, 1, 1)), "the number of plans is 0"),
        (replace(INDEX, plans=(HEALTHY, HEALTHY), layouts=(LAYOUT, LAYOUT)), "the same failed workers"),
        (
            replace(INDEX, plans=(HEALTHY,), layouts=(LAYOUT,)),
            "1 plans and 0 re-cuts in its index, 2 in",
        ),
        (replace(INDEX, chunk_stages=(0, 0, 0)), "a stage has no chunk"),
        (replace(INDEX, chunk_stages=(0, 1, 2)), "the stage of a chunk is 2"),
        (replace(INDEX, layouts=(LAYOUT._replace(widths=(1, 3, *WIDTHS[2:])), LAYOUT)), "bytes wide"),
        (replace(INDEX, layouts=(LAYOUT._replace(widths=(9, *WIDTHS[1:])), LAYOUT)), "the width of a column"),
        (replace(INDEX, layouts=(LAYOUT._replace(lengths=(1 << 28, 1, 1, 1)), LAYOUT)), "a plan of"),
        (replace(INDEX, layouts=(LAYOUT._replace(lengths=(1 << 40, 1, 1, 1)), LAYOUT)), "the length of a"),
        (replace(INDEX, layouts=(LAYOUT._replace(digest=b"short"), LAYOUT)), "damaged: "),
        (replace(INDEX, plans=(HEALTHY, HEALTHY._replace(failed=((9, 9),)))), "a failed worker is"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(index: Index, message: str) -> None:
    with pytest.raises(BundleError, match=f"^damaged: .*({message.removeprefix('damaged: ')})"):
        Bundle.parse(sealed(pack_index(index), PACKED))


def test_texts_that_make_no_sense_are_refused() -> None:
    packed = pack_index(INDEX)
    for texts, message in (
        (b"\4\1\1\1\1\xff\xff\xff\xff", "its texts are not UTF-8"),
        (b"\3\xff\xff\xff\xff\xff\xff\xff\xff\x7f\1\1a", "where 9223372036854775809 are needed"),
        (b"\3\1\1\1a", "1 bytes where 3 are needed"),
        (b"\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", "does not end where it should"),
        (b"\x7f", "the number of texts is 127"),
    ):
        with pytest.raises(BundleError, match=message):
            Bundle.parse(sealed(texts, []))
    assert Bundle.parse(sealed(packed, PACKED)).job_text == "job tiny"


def test_an_index_that_does_not_have_its_hash_is_refused() -> None:
    other = sealed(pack_index(replace(INDEX, job_text="job tinier")), PACKED)
    assert Bundle.parse(other).job_text == "job tinier"
    rest = DATA[14:46] + other[46:]
    with pytest.raises(BundleError, match=r"^damaged: its content does not have the hash that it states$"):
        Bundle.parse(DATA[:10] + struct.pack("<I", zlib.crc32(rest)) + rest)


def test_streams_that_do_not_have_their_hash_are_refused_when_asked_for() -> None:
    bundle = Bundle.parse(sealed(pack_index(INDEX), [PACKED[0], zlib.compress(PLANS[1][:-1] + b"\1")]))
    assert len(bundle.stream(0, (0, 0))) == 2
    with pytest.raises(BundleError, match=r"^damaged: the streams of plan 1 cannot be unpacked$"):
        bundle.stream(1, (0, 1))


def test_a_number_out_of_range_is_refused_when_asked_for() -> None:
    odd = encode(FORWARD, FORWARD, STEP, (STEP[0]._replace(chunk=2),))
    index = replace(INDEX, layouts=(layout(odd, 2, 2, 1, 1), INDEX.layouts[1]))
    bundle = Bundle.parse(join_bundle(index, [odd, PLANS[1]]))
    assert bundle.stream(0, (0, 1)) == STEP
    with pytest.raises(BundleError, match=r"^damaged: worker 1:1 of plan 0 has a number out of range$"):
        bundle.stream(0, (1, 1))


def test_claiming_much_does_not_take_much_memory() -> None:
    rows = LARGEST_PLAN // 7 - 6
    greedy = replace(INDEX, layouts=(LAYOUT._replace(lengths=(rows, 2, 1, 1)), INDEX.layouts[1]))
    bundle = Bundle.parse(sealed(pack_index(greedy), PACKED))
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            bundle.stream(0, (0, 0))
        with pytest.raises(BundleError):
            Bundle.parse(sealed(bytes(60), PACKED)[:46] + struct.pack("<II", 1 << 28, 2) + DATA[54:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_chunks_that_are_not_the_stages_are_stored() -> None:
    index = replace(INDEX, chunk_stages=(0, 1, 1, 0))
    assert Bundle.parse(join_bundle(index, PLANS)).chunk_stages == (0, 1, 1, 0)


def test_reading_needs_the_standard_library_alone() -> None:
    script = "import sys, recycle_runtime.plan.bundle, recycle_runtime.plan.assembly; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) <= {"recycle_runtime", "__main__"}

"""Reading bundles with the standard library alone: what is there, and what is refused."""

import struct
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_runtime.plan import bundle as reader
from recycle_runtime.plan.bundle import Bundle, BundleError, PlanEntry, join_bundle
from recycle_runtime.plan.bundle_index import Blob, Index, pack_index
from recycle_runtime.plan.codec import PLAIN, Frame, encode_fields
from recycle_runtime.plan.isa import NONE, Instruction, Opcode

RUNTIME = Path(reader.__file__).resolve().parents[2]
FRAME = Frame(home=0, is_last_stage=False, pipelines=2, microbatches=1)


def encode(*stream: Instruction) -> bytes:
    return encode_fields([int(field) for instruction in stream for field in instruction], FRAME, PLAIN)


FORWARD = encode(Instruction(Opcode.LOAD, 0, 0, 0), Instruction(Opcode.FORWARD, 0, 0, 0))
STEP = encode(Instruction(Opcode.OPTIMIZER))
HEALTHY = PlanEntry((), (0, 5), 10, 12, 12, "load of stage 0", False)
INDEX = Index(
    compiler_version="1.2",
    job_source="job tiny {}",
    job_text="job tiny",
    stages=2,
    pipelines=2,
    tensor=1,
    microbatches=1,
    plans=(HEALTHY, HEALTHY._replace(failed=((1, 0),), cut_short=True)),
    blobs=(Blob(0, len(FORWARD), 2), Blob(len(FORWARD), len(STEP), 1)),
    references=((0, 0, 1, 1), (0, 1, 1)),
)
DATA = join_bundle(INDEX, FORWARD + STEP)


def test_what_is_there() -> None:
    bundle = Bundle.parse(DATA)
    assert bundle.format_version == 1
    assert bundle.plans == INDEX.plans
    assert bundle.workers(0) == ((0, 0), (1, 0), (0, 1), (1, 1))
    assert bundle.workers(1) == ((0, 0), (0, 1), (1, 1))
    assert bundle.stream(0, (1, 0)) == (
        Instruction(Opcode.LOAD, 1, 0, 0),
        Instruction(Opcode.FORWARD, 1, 0, 0, NONE, NONE),
    )
    assert bundle.stream(1, (1, 1)) == (Instruction(Opcode.OPTIMIZER),)
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
        join_bundle(INDEX, FORWARD + STEP)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a bundle: it is empty"),
        (b"job figure3 {", "not a bundle: it does not begin like one"),
        (b"PK\x03\x04" + bytes(100), "not a bundle: it does not begin like one"),
        (DATA.replace(b"\r\n", b"\n", 1), "not a bundle: it does not begin like one"),
        (DATA[:5], "truncated: 5 bytes long, at least 22 expected"),
        (DATA[:-1], f"truncated: {len(DATA) - 1} bytes long, expected {len(DATA)}"),
        (DATA + b"\0", f"followed by other bytes: {len(DATA) + 1} bytes long, expected {len(DATA)}"),
        (DATA[:8] + b"\2\0" + DATA[10:], "made by a newer recyclec: format 2, this one reads up to 1"),
        (DATA[:8] + b"\0\0" + DATA[10:], "damaged: format 0 does not exist"),
        (DATA[:-1] + bytes([DATA[-1] ^ 1]), "damaged: the checksum does not match"),
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


def sealed(index: bytes, body: bytes) -> bytes:
    rest = struct.pack("<II", len(index), len(body)) + index + body
    return DATA[:10] + struct.pack("<I", zlib.crc32(rest)) + rest


BODY = FORWARD + STEP


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (replace(INDEX, stages=0), "the number of stages is 0, which must be from 1 to 1048575"),
        (replace(INDEX, pipelines=1 << 19), "it ends before the streams of"),
        (replace(INDEX, plans=(), references=()), "the number of plans is 0"),
        (replace(INDEX, plans=(HEALTHY, HEALTHY), references=((0, 0, 1, 1),) * 2), "the same failed workers"),
        (replace(INDEX, blobs=INDEX.blobs[:1]), "a stream is 0|its streams are"),
        (replace(INDEX, references=((0, 0, 0, 0), (0, 0, 0))), "nothing refers to"),
        (
            replace(INDEX, blobs=(Blob(0, len(BODY), 1 << 40), Blob(0, 1, 1))),
            "bytes cannot hold 1099511627776",
        ),
        (replace(INDEX, blobs=(Blob(0, len(BODY) + 9, 1), Blob(0, 1, 1))), "the length of a stream is"),
        (replace(INDEX, references=((0, 0, 1), (0, 1, 1))), "damaged: "),
        (replace(INDEX, plans=(HEALTHY, HEALTHY._replace(failed=((9, 9),)))), "a failed worker is"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(index: Index, message: str) -> None:
    with pytest.raises(BundleError, match=f"^damaged: .*({message.removeprefix('damaged: ')})"):
        Bundle.parse(sealed(pack_index(index), BODY))


def test_texts_that_make_no_sense_are_refused() -> None:
    packed = pack_index(INDEX)
    for texts, message in (
        (b"\4\1\1\1\1\4\xff\xff\xff\xff", "its texts are not UTF-8"),
        (
            b"\3\xff\xff\xff\xff\xff\xff\xff\xff\x7f\1\1\1a",
            "its texts cannot be 9223372036854775809 bytes long",
        ),
        (b"\3\1\1\1\4aaaa", "the length of the texts is 4"),
        (b"\3\1\1\1\3a", "1 bytes where 3 are needed"),
        (b"\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", "does not end where it should"),
        (b"\x7f", "the number of texts is 127"),
    ):
        with pytest.raises(BundleError, match=message):
            Bundle.parse(sealed(texts, b""))
    assert Bundle.parse(sealed(packed, BODY)).job_text == "job tiny"


def test_a_stream_that_cannot_be_decoded_is_refused_when_asked_for() -> None:
    bundle = Bundle.parse(sealed(pack_index(INDEX), FORWARD + bytes([STEP[0] ^ 255]) + STEP[1:]))
    assert len(bundle.stream(0, (0, 0))) == 2
    with pytest.raises(BundleError, match=r"^damaged: the stream of worker 0:1 in plan 1 cannot be decoded$"):
        bundle.stream(1, (0, 1))


def test_claiming_much_does_not_take_much_memory() -> None:
    greedy = replace(
        INDEX, blobs=(Blob(0, len(FORWARD), 400 * len(FORWARD)), Blob(0, len(STEP), 400 * len(STEP)))
    )
    bundle = Bundle.parse(sealed(pack_index(greedy), BODY))
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            bundle.stream(0, (0, 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


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

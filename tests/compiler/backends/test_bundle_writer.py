"""A bundle holds what was put in, the same bytes every time, and never half of itself."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recycle_compiler.backends import bundle as writer
from recycle_compiler.backends.bundle import bundle_bytes, read_streams, write_bundle
from recycle_compiler.ir.job import print_job
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.version import __version__
from recycle_runtime.plan import bundle as reader
from recycle_runtime.plan.bundle import Bundle, BundleError, join_bundle
from tests.compiler.backends.synthetic_programs import compute_ops, job, program

SOURCE = "job synthetic {  # written by hand: μ\n}\n"
SPEC = job(4, 3, 6)
PROGRAMS = (
    program(SPEC),
    program(SPEC, [(2, 1)]),
    program(SPEC, [(1, 2), (2, 1), (2, 2)], seed=4),
)


def assert_same(left: Streams, right: Streams) -> None:
    assert (left.job, left.failed, left.release, left.claims) == (
        right.job,
        right.failed,
        right.release,
        right.claims,
    )
    assert left.workers == right.workers
    for mine, theirs in zip((left.offsets, *left.columns), (right.offsets, *right.columns), strict=True):
        assert mine.dtype == theirs.dtype == np.int64
        assert np.array_equal(mine, theirs)


def test_programs_come_back_as_they_were() -> None:
    bundle = Bundle.parse(bundle_bytes(source=SOURCE, plans=PROGRAMS))
    for index, plan in enumerate(PROGRAMS):
        assert_same(read_streams(bundle, index), plan)


def test_the_reader_finds_everything() -> None:
    bundle = Bundle.parse(bundle_bytes(source=SOURCE, plans=PROGRAMS))
    assert bundle.format_version == 3
    assert bundle.chunk_stages == (0, 1, 2, 3)
    assert bundle.compiler_version == __version__
    assert bundle.job_source == SOURCE
    assert bundle.job_text == print_job(SPEC)
    assert (bundle.stages, bundle.pipelines, bundle.tensor, bundle.microbatches) == (4, 3, 1, 6)
    assert [plan.failed for plan in bundle.plans] == [(), ((2, 1),), ((1, 2), (2, 1), (2, 2))]
    assert bundle.plans[1].reason == "load of stage 1"
    assert bundle.instructions == sum(len(plan.opcode) for plan in PROGRAMS)
    assert bundle.find([0, 1, 0, 0]) == 1
    assert bundle.find([0, 1, 2, 0]) == 2
    assert bundle.find([0, 2, 0, 0]) is None
    for index, plan in enumerate(PROGRAMS):
        assert bundle.workers(index) == plan.workers
        for worker, stream in plan.items():
            assert bundle.stream(index, worker) == stream


def test_claims_keep_every_value() -> None:
    claims = Claims(0, 1 << 62, 7, "tail of stage 3, μ", cut_short=True)
    plan = replace(PROGRAMS[0], claims=claims, release=(0, 1 << 40, 5, 5))
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert_same(read_streams(bundle, 0), plan)


def test_long_texts_are_kept() -> None:
    source = "# a comment\n" * 5000
    assert Bundle.parse(bundle_bytes(source=source, plans=PROGRAMS[:1])).job_source == source


def test_a_bundle_costs_little_more_than_a_byte_per_op() -> None:
    """Index, job and checksums included; re-routed at random, which no planner does."""
    spec = job(6, 6, 64)
    plans = [program(spec, [(5, stage) for stage in range(failures)], seed=1) for failures in range(4)]
    data = bundle_bytes(source=SOURCE, plans=plans)
    assert len(data) / compute_ops(plans) <= 1.1


def test_the_hash_is_of_the_content() -> None:
    """Another zlib may pack it otherwise."""
    data = bundle_bytes(source=SOURCE, plans=PROGRAMS)
    again = Bundle.parse(data)
    assert len(again.content_hash) == 64
    columns = [again.columns(plan).data for plan in range(3)]
    assert Bundle.parse(join_bundle(again, columns)).content_hash == again.content_hash
    for other in (
        bundle_bytes(source=f"{SOURCE} ", plans=PROGRAMS),
        bundle_bytes(source=SOURCE, plans=PROGRAMS[:2]),
        bundle_bytes(source=SOURCE, plans=[*PROGRAMS[:2], program(SPEC, PROGRAMS[2].failed, seed=5)]),
    ):
        assert Bundle.parse(other).content_hash != again.content_hash


def test_the_hash_does_not_depend_on_how_hard_zlib_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bundle_bytes(source=SOURCE, plans=PROGRAMS)
    monkeypatch.setattr(reader, "PACKING", 1)
    other = bundle_bytes(source=SOURCE, plans=PROGRAMS)
    assert data != other
    assert Bundle.parse(data).content_hash == Bundle.parse(other).content_hash


def test_a_bundle_needs_plans_of_one_job_for_different_failures() -> None:
    other = program(job(4, 3, 7))
    for programs, message in (
        ([], "at least one plan"),
        ([PROGRAMS[0], other], "of one job"),
        ([PROGRAMS[0], PROGRAMS[0]], "the same failed workers"),
        ([replace(PROGRAMS[0], failed=PROGRAMS[1].failed)], "a stream for every worker"),
        ([replace(PROGRAMS[0], release=(0, 0, 0, -1))], "cannot hold the number -1"),
    ):
        with pytest.raises(ValueError, match=message):
            bundle_bytes(source=SOURCE, plans=programs)


def test_a_job_that_does_not_fit_the_index_is_refused() -> None:
    bundle = Bundle.parse(bundle_bytes(source=SOURCE, plans=PROGRAMS[:1]))
    for job_text, message in (
        ("job x\n", "its job cannot be read"),
        (print_job(replace(SPEC, tensor=2)), "do not have the same shape"),
    ):
        with pytest.raises(BundleError, match=message):
            other = replace(bundle, job_text=job_text)
            read_streams(Bundle.parse(join_bundle(other, [bundle.columns(0).data])), 0)


def test_the_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.plan"
    path.write_bytes(b"old")
    write_bundle(path, source=SOURCE, plans=PROGRAMS)
    assert path.read_bytes() == bundle_bytes(source=SOURCE, plans=PROGRAMS)
    assert os.listdir(tmp_path) == ["job.plan"]
    other = tmp_path / "other"
    other.write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: type[BaseException]
) -> None:
    path = tmp_path / "job.plan"
    path.write_bytes(b"old")
    monkeypatch.setattr(writer.os, call, _raiser(error))
    with pytest.raises(error):
        write_bundle(path, source=SOURCE, plans=PROGRAMS)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["job.plan"]


def _raiser(error: type[BaseException]) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise error

    return fail


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*: no such file or directory"):
        write_bundle(tmp_path / "nowhere" / "job.plan", source=SOURCE, plans=PROGRAMS)
    with pytest.raises(OSError, match=r"cannot write .*: is a directory"):
        write_bundle(tmp_path, source=SOURCE, plans=PROGRAMS)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_bundle(tmp_path / "link", source=SOURCE, plans=PROGRAMS)
    assert (tmp_path / "link").is_symlink()
    assert Bundle.read(tmp_path / "file").job_source == SOURCE


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_bundle(path, source=SOURCE, plans=PROGRAMS)
        assert os.read(reader, 1 << 16) == bundle_bytes(source=SOURCE, plans=PROGRAMS)
    finally:
        os.close(reader)
    assert path.is_fifo()

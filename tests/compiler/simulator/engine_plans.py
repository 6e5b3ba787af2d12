"""Plans for the engine, quickly made, and their streams as values that a test can change."""

from pathlib import Path

from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.passes.assign_buffers import AssignBuffers
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.simulator.engine import SimulatedRun, run_streams
from recycle_compiler.simulator.streams import streams_from
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.support.jobs import quick_plan
from tests.support.layers import jobs_and_layouts

Lists = dict[Worker, list[Instruction]]
SCHEDULES = Path(__file__).resolve().parents[3] / "golden" / "schedules"


def recut_plan(job: JobSpec, layout: Layout) -> Streams:
    """A quick plan of a job in layers under another cut."""
    derived = job_of_layout(job, layout)
    return quick_plan(Target(derived, absent_cells(derived, layout)))


def quick_recuts() -> st.SearchStrategy[Streams]:
    """Of small jobs in layers under any cut."""
    return jobs_and_layouts().map(lambda pair: recut_plan(*pair))


def golden_plan(name: str) -> Streams:
    """The plan of a schedule that was planned once and for all."""
    schedule = parse_schedule((SCHEDULES / f"{name}.txt").read_text(encoding="utf-8"))
    return AssignBuffers().run(InsertTransfers().run(schedule))


def bundle_of(program: Streams) -> Bundle:
    return Bundle.parse(bundle_bytes(source="", plans=[program]))


def streams_of(program: Streams) -> Lists:
    return {worker: list(stream) for worker, stream in program.items()}


def run(program: Streams, streams: Lists) -> SimulatedRun:
    """The plan with other streams."""
    return run_streams(streams_from(streams, program.job.pipelines), program.job, program.release)


def places(streams: Lists, *opcodes: Opcode) -> list[tuple[Worker, int]]:
    """Every instruction with one of these opcodes: the worker, and the position in its stream."""
    return [
        (worker, position)
        for worker, stream in streams.items()
        for position, instruction in enumerate(stream)
        if instruction.opcode in opcodes
    ]

"""The loop, what it says when an instruction fails, and small helpers around streams."""

import json

import pytest

from recycle_runtime.execution.interpreter import Interpreter, RunAgain, StreamError
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.program.errors import ProgramError

STREAM = (
    Instruction(Opcode.LOAD, 0, 0, 0, 0),
    Instruction(Opcode.FORWARD, 0, 0, 0, 0),
    Instruction(Opcode.BACKWARD, 0, 0, 0, 0),
    Instruction(Opcode.REDUCE, 0),
    Instruction(Opcode.OPTIMIZER, 0),
)


def test_every_instruction_reaches_its_handler_in_order() -> None:
    seen: list[Instruction] = []
    Interpreter(STREAM, dict.fromkeys(Opcode, seen.append), (0, 0), 0, 3).run(3)
    assert seen == list(STREAM)


def test_a_failure_shows_the_stream_around_it() -> None:
    def handler(instruction: Instruction) -> None:
        if instruction.opcode is Opcode.BACKWARD:
            raise ValueError("out of luck")

    interpreter = Interpreter(STREAM, dict.fromkeys(Opcode, handler), (1, 2), 4, 3)
    with pytest.raises(StreamError) as caught:
        interpreter.run(7)
    head, *rest = str(caught.value).splitlines()
    assert head == "worker 1:2, step 7, plan 4, instruction 2: ValueError: out of luck"
    assert [line[:2] for line in rest] == ["  ", "  ", "->", "  ", "  "]
    assert interpreter.position == 2
    assert isinstance(caught.value.__cause__, ValueError)


def test_running_again_is_not_a_failure() -> None:
    def handler(instruction: Instruction) -> None:
        if instruction.opcode is Opcode.REDUCE:
            raise RunAgain

    with pytest.raises(RunAgain):
        Interpreter(STREAM, dict.fromkeys(Opcode, handler), (0, 0), 0, 3).run(0)


def test_messages_that_wait_at_once() -> None:
    stream = (
        Instruction(Opcode.RECV_ACTIVATION, 1, 0, 0, inbox=0, neighbour=0),
        Instruction(Opcode.RECV_ACTIVATION, 1, 0, 1, inbox=1, neighbour=0),
        Instruction(Opcode.FORWARD, 1, 0, 0, 0, 0),
        Instruction(Opcode.RECV_ACTIVATION, 1, 1, 0, inbox=0, neighbour=1),
        Instruction(Opcode.RECV_GRADIENT, 1, 0, 0, inbox=2, neighbour=4),
        Instruction(Opcode.BACKWARD_INPUT, 1, 0, 0, 0, 2),
    )
    assert most_waiting(stream, 2) == {(0, 0): 2, (1, 0): 1, (0, 2): 1}


def test_a_trace_has_a_track_for_each_worker() -> None:
    rows = json.loads(chrome_trace({(0, 1): [("F0.0", 0, 5000, 7000)], (0, 0): [("W0.0", 0, 4000, 4500)]}))
    named = [row["args"]["name"] for row in rows["traceEvents"] if row["name"] == "thread_name"]
    assert named == ["worker 0:0", "worker 0:1"]
    ops = [(row["name"], row["ts"], row["dur"]) for row in rows["traceEvents"] if row["ph"] == "X"]
    assert ops == [("W0.0", 0.0, 0.5), ("F0.0", 1.0, 2.0)]


def test_what_has_failed_need_not_be_what_the_instruction_is_called() -> None:
    def handler(instruction: Instruction) -> None:
        error = ProgramError("no such file")
        error.doing = "load"
        raise error

    receives = (Instruction(Opcode.RECV_ACTIVATION, 0, 1, 2, 0, 0, 0),)
    with pytest.raises(StreamError) as caught:
        Interpreter(receives, dict.fromkeys(Opcode, handler), (1, 2), 4, 3).run(7)
    assert caught.value.where.startswith("worker 1:2, step 7, load of micro-batch")

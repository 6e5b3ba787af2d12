"""What the codec expects of a stream: each instruction, predicted from those before it.

`code_stream` is the model of both directions. Only differences from what it expects cost much:

- the opcode follows from the two before it;
- a micro-batch passes from instruction to instruction: once forwarded it is due for its backward, in order.
  Only the first instruction on a micro-batch names it, and then it is mostly the next of its pipeline;
- a buffer or inbox is the lowest free one, and stays with its micro-batch until it is freed;
- a gradient comes from where the activation went; a pipeline's messages go where the last of them went.

Pipelines and peers are relative to the worker's own pipeline, which makes equal workers equal bytes.
As in the range coder, all state is in `memory`; `stream_layout` says what lies where. A `row` is the index
of an instruction's first field, a `unit` that of what is known about one micro-batch.
"""

from recycle_runtime.plan import stream_layout as at
from recycle_runtime.plan.isa import CONSUMES, RECEIVES, USES_BUFFER, USES_MICROBATCH, USES_PEER, Opcode
from recycle_runtime.plan.range_coder import (
    ENCODING,
    LARGEST_NUMBER,
    NUMBER_CONTEXTS,
    code_bit,
    code_number,
    code_symbol,
)

LOAD = Opcode.LOAD.value
RECV_ACTIVATION = Opcode.RECV_ACTIVATION.value
FORWARD = Opcode.FORWARD.value
SEND_ACTIVATION = Opcode.SEND_ACTIVATION.value
RECV_GRADIENT = Opcode.RECV_GRADIENT.value
BACKWARD = Opcode.BACKWARD.value
BACKWARD_INPUT = Opcode.BACKWARD_INPUT.value
BACKWARD_WEIGHT = Opcode.BACKWARD_WEIGHT.value
SEND_GRADIENT = Opcode.SEND_GRADIENT.value
LAST_OPCODE = max(Opcode).value

# Sets of opcodes, a bit for each.
MICROBATCH_OPCODES = sum(1 << opcode for opcode in USES_MICROBATCH)
BUFFER_OPCODES = sum(1 << opcode for opcode in USES_BUFFER)
PEER_OPCODES = sum(1 << opcode for opcode in USES_PEER)
RECEIVE_OPCODES = sum(1 << opcode for opcode in RECEIVES)
INBOX_OPCODES = sum(1 << opcode for opcode in RECEIVES | CONSUMES)


def code_stream(memory: list[int]) -> bool:
    """All instructions, one after another; False when what is decoded makes no sense."""
    before = 0
    previous = 0
    first = memory[at.ROWS_AT]
    for row in range(first, first + memory[at.SIZE] * at.FIELDS, at.FIELDS):
        opcode = code_symbol(memory, opcode_context(before, previous), at.OPCODE_BITS, memory[row])
        if opcode < 1 or opcode > LAST_OPCODE:
            return False
        if memory[ENCODING] == 0:
            memory[row] = opcode
            for field in range(1, at.FIELDS):
                memory[row + field] = -1
        if MICROBATCH_OPCODES >> opcode & 1 == 1 and not code_operands(memory, row):
            return False
        before = previous
        previous = opcode
    return True


def opcode_context(before: int, previous: int) -> int:
    """The contexts of an opcode that comes after these two."""
    return at.NEXT_OPCODE + ((before << at.OPCODE_BITS | previous) << at.OPCODE_BITS)


def code_operands(memory: list[int], row: int) -> bool:
    """The fields that the opcode uses, and what becomes due after it."""
    opcode = memory[row]
    unit = code_unit(memory, row)
    if unit < 0:
        return False
    if BUFFER_OPCODES >> opcode & 1 == 1 and not code_buffer(memory, row, unit):
        return False
    if INBOX_OPCODES >> opcode & 1 == 1 and not code_inbox(memory, row, unit):
        return False
    if PEER_OPCODES >> opcode & 1 == 1:
        code_peer(memory, row, unit)
    push_what_follows(memory, opcode, unit)
    return True


def push_what_follows(memory: list[int], opcode: int, unit: int) -> None:
    """After an instruction on a micro-batch, the ones it is due for."""
    if opcode == FORWARD:
        push(memory, SEND_ACTIVATION, unit)
        push(memory, BACKWARD_INPUT if memory[at.IS_LAST_STAGE] == 1 else RECV_GRADIENT, unit)
    elif opcode == RECV_GRADIENT:
        push(memory, BACKWARD_INPUT, unit)
    elif opcode == BACKWARD:
        push(memory, SEND_GRADIENT, unit)
    elif opcode == BACKWARD_INPUT:
        push(memory, SEND_GRADIENT, unit)
        push(memory, BACKWARD_WEIGHT, unit)


def push(memory: list[int], queue: int, unit: int) -> None:
    """The unit is now due for this opcode."""
    tail = memory[at.QUEUE_ENDS + 2 * queue + 1]
    memory[memory[at.QUEUES_AT] + queue * memory[at.SIZE] + tail] = unit
    memory[at.QUEUE_ENDS + 2 * queue + 1] = tail + 1


def code_unit(memory: list[int], row: int) -> int:
    """The micro-batch, as the first, second, ... of those due, or as a new one; -1 when there is no such."""
    opcode = memory[row]
    # A micro-batch is due for one backward, whole or not.
    queue = BACKWARD_INPUT if opcode == BACKWARD else opcode
    passed = memory[at.QUEUE_ENDS + 2 * queue]
    due = min(memory[at.QUEUE_ENDS + 2 * queue + 1] - passed, at.WINDOW)
    head = memory[at.QUEUES_AT] + queue * memory[at.SIZE] + passed
    rank = find_due(memory, row, head, due) if memory[ENCODING] == 1 else 0
    if due == 0 or code_bit(memory, at.IS_DUE + opcode, 1 if rank < due else 0) == 0:
        return code_new_unit(memory, row)
    if due > 1:
        rank = code_number(memory, at.RANK + opcode * NUMBER_CONTEXTS, rank)
        if rank >= due:
            return -1
    unit = memory[head + rank]
    for place in range(head + rank, head, -1):
        memory[place] = memory[place - 1]
    memory[at.QUEUE_ENDS + 2 * queue] = passed + 1
    memory[row + at.PIPELINE] = memory[unit + at.PIPELINE]
    memory[row + at.MICROBATCH] = memory[unit + at.MICROBATCH]
    return unit


def find_due(memory: list[int], row: int, head: int, due: int) -> int:
    """Where the instruction's micro-batch stands among those due; `due` when it is not there."""
    pipeline = memory[row + at.PIPELINE]
    microbatch = memory[row + at.MICROBATCH]
    for rank in range(due):
        unit = memory[head + rank]
        if memory[unit + at.PIPELINE] == pipeline and memory[unit + at.MICROBATCH] == microbatch:
            return rank
    return due


def code_new_unit(memory: list[int], row: int) -> int:
    """A micro-batch that was not due for this; -1 when its pipeline has no such micro-batch."""
    pipeline = code_pipeline(memory, memory[row + at.PIPELINE])
    microbatch = code_microbatch(memory, pipeline, memory[row + at.MICROBATCH])
    if microbatch < 0 or microbatch >= memory[at.MICROBATCHES]:
        return -1
    memory[row + at.PIPELINE] = pipeline
    memory[row + at.MICROBATCH] = microbatch
    unit = memory[at.NEXT_UNIT]
    memory[at.NEXT_UNIT] = unit + at.UNIT_FIELDS
    for field in range(at.UNIT_FIELDS):
        memory[unit + field] = -1
    memory[unit + at.PIPELINE] = pipeline
    memory[unit + at.MICROBATCH] = microbatch
    # The last stage both receives and loads, in either order, before it runs forward.
    if memory[row] == LOAD:
        push(memory, FORWARD, unit)
        push(memory, RECV_ACTIVATION, unit)
    elif memory[row] == RECV_ACTIVATION:
        push(memory, FORWARD, unit)
        push(memory, LOAD, unit)
    return unit


def code_pipeline(memory: list[int], pipeline: int) -> int:
    """Home, or the distance from the last pipeline that was not."""
    history = memory[at.HOME_HISTORY]
    is_home = code_bit(memory, at.IS_HOME + history, 1 if pipeline == 0 else 0)
    memory[at.HOME_HISTORY] = (history << 1 | is_home) & 7
    if is_home == 1:
        return 0
    step = (pipeline - memory[at.LAST_FOREIGN]) % memory[at.PIPELINES]
    step = code_number(memory, at.FOREIGN_STEP, step)
    memory[at.LAST_FOREIGN] = (memory[at.LAST_FOREIGN] + step) % memory[at.PIPELINES]
    return memory[at.LAST_FOREIGN]


def code_microbatch(memory: list[int], pipeline: int, microbatch: int) -> int:
    """The distance from the next micro-batch of the pipeline."""
    is_home = 1 if pipeline == 0 else 0
    expected = memory[memory[at.ROUTES_AT] + pipeline]
    if code_bit(memory, at.IS_LATER + is_home, 1 if microbatch >= expected else 0) == 1:
        context = at.MICROBATCH_STEP + is_home * NUMBER_CONTEXTS
        microbatch = expected + code_number(memory, context, microbatch - expected)
    else:
        context = at.MICROBATCH_STEP + (2 + is_home) * NUMBER_CONTEXTS
        microbatch = expected - 1 - code_number(memory, context, expected - 1 - microbatch)
    memory[memory[at.ROUTES_AT] + pipeline] = microbatch + 1
    return microbatch


def code_buffer(memory: list[int], row: int, unit: int) -> bool:
    """The buffer that the micro-batch has, or the lowest free one."""
    is_known = 1 if memory[unit + at.BUFFER] >= 0 else 0
    expected = memory[unit + at.BUFFER] if is_known == 1 else memory[at.LOWEST_FREE]
    buffer = memory[row + at.BUFFER]
    if code_bit(memory, at.SAME_BUFFER + is_known, 1 if buffer == expected else 0) == 1:
        buffer = expected
    else:
        buffer = code_number(memory, at.BUFFER_NUMBER, buffer)
    memory[row + at.BUFFER] = buffer
    if is_known == 0:
        memory[unit + at.BUFFER] = buffer
        mark(memory, 0, buffer, 1)
    if memory[row] == BACKWARD or memory[row] == BACKWARD_WEIGHT:
        mark(memory, 0, buffer, 0)
    return buffer <= LARGEST_NUMBER


def code_inbox(memory: list[int], row: int, unit: int) -> bool:
    """A receive takes the lowest free inbox; what consumes the message frees it, or had none."""
    receives = RECEIVE_OPCODES >> memory[row] & 1
    expected = memory[at.LOWEST_FREE + 1] if receives == 1 else memory[unit + at.INBOX]
    inbox = memory[row + at.INBOX]
    if code_bit(memory, at.SAME_INBOX + receives, 1 if inbox == expected else 0) == 1:
        inbox = expected
    else:
        inbox = code_number(memory, at.INBOX_NUMBER, inbox + 1) - 1
    memory[row + at.INBOX] = inbox
    memory[unit + at.INBOX] = inbox if receives == 1 else -1
    mark(memory, 1, inbox, receives)
    return inbox >= receives - 1 and inbox <= LARGEST_NUMBER


def mark(memory: list[int], pool: int, number: int, in_use: int) -> None:
    """Take or free a buffer (pool 0) or an inbox (pool 1)."""
    if number < 0 or number >= at.TRACKED:
        return
    taken = at.TAKEN + pool * at.TRACKED
    memory[taken + number] = in_use
    lowest = memory[at.LOWEST_FREE + pool]
    if in_use == 0:
        lowest = min(lowest, number)
    while lowest < at.TRACKED and memory[taken + lowest] == 1:
        lowest += 1
    memory[at.LOWEST_FREE + pool] = lowest


def code_peer(memory: list[int], row: int, unit: int) -> None:
    """The peer that this micro-batch met on that side before, or the last peer of its pipeline there."""
    pipelines = memory[at.PIPELINES]
    side = 1 if memory[row] == SEND_ACTIVATION or memory[row] == RECV_GRADIENT else 0
    pipeline = memory[unit + at.PIPELINE]
    route = memory[at.ROUTES_AT] + (1 + side) * pipelines + pipeline
    rerouted = memory[at.ROUTES_AT] + (3 + side) * pipelines + pipeline
    context = at.SAME_PEER + side
    expected = memory[unit + at.PEER + side]
    if expected < 0:
        context += 2 + 2 * memory[rerouted]
        # Routes start as zeros, so they hold the distance from the pipeline itself.
        expected = (pipeline + memory[route]) % pipelines
    peer = memory[row + at.PEER]
    is_same = code_bit(memory, context, 1 if peer == expected else 0)
    if is_same == 0:
        step = code_number(memory, at.PEER_STEP + side * NUMBER_CONTEXTS, (peer - expected) % pipelines)
        expected = (expected + step) % pipelines
    if memory[unit + at.PEER + side] < 0:
        memory[route] = (expected - pipeline) % pipelines
        memory[rerouted] = 1 - is_same
    memory[row + at.PEER] = expected
    memory[unit + at.PEER + side] = expected

"""Where the stream model keeps what it knows: indices into its memory, all of which starts as zeros.

Plain numbers throughout, for the compiler compiles the functions that use them.
"""

from recycle_runtime.plan.range_coder import NUMBER_CONTEXTS, REGISTERS

OPCODE_BITS = 4

OPCODE, PIPELINE, MICROBATCH, BUFFER, INBOX, PEER = range(6)
FIELDS = 6
"""A row is one instruction."""
UNIT_FIELDS = 7
"""What is known about a micro-batch: the fields of a row, PEER on the previous stage, then on the next."""
ROUTES = 5
"""What is known of a pipeline: its next micro-batch; on each side its last peer; whether each had changed."""
QUEUES = 10
"""For each opcode on a micro-batch, the units due for it."""
WINDOW = 64
"""How far the model looks into a queue."""
TRACKED = 512
"""Buffers and inboxes from this number on are not foreseen. Both limits keep odd input from being slow."""

SIZE, PIPELINES, MICROBATCHES, IS_LAST_STAGE = range(REGISTERS, REGISTERS + 4)
"""What the model is told: instructions, the job's shape, whose stream it is."""
ROWS_AT, ROUTES_AT, QUEUES_AT, NEXT_UNIT = range(REGISTERS + 4, REGISTERS + 8)
"""Where the parts begin whose size depends on the stream."""
HOME_HISTORY, LAST_FOREIGN, LOWEST_FREE = range(REGISTERS + 8, REGISTERS + 11)
"""Which of the last units were home's; the last pipeline that was not; the lowest free buffer, then inbox."""
QUEUE_ENDS = LOWEST_FREE + 2
TAKEN = QUEUE_ENDS + 2 * QUEUES

# Contexts: first those of bits that are mostly one.
IS_DUE = TAKEN + 2 * TRACKED
SAME_BUFFER = IS_DUE + QUEUES
SAME_INBOX = SAME_BUFFER + 2
SAME_PEER = SAME_INBOX + 2
IS_LATER = SAME_PEER + 6
IS_HOME = IS_LATER + 2
RANK = IS_HOME + 8
FOREIGN_STEP = RANK + QUEUES * NUMBER_CONTEXTS
MICROBATCH_STEP = FOREIGN_STEP + NUMBER_CONTEXTS
BUFFER_NUMBER = MICROBATCH_STEP + 4 * NUMBER_CONTEXTS
INBOX_NUMBER = BUFFER_NUMBER + NUMBER_CONTEXTS
PEER_STEP = INBOX_NUMBER + NUMBER_CONTEXTS
NEXT_OPCODE = PEER_STEP + 2 * NUMBER_CONTEXTS
FIXED = NEXT_OPCODE + (1 << 3 * OPCODE_BITS)
"""Where the parts of a fixed size end."""

"""Backward in two halves: the gradient of the input now, the gradients of the weights later.

split = prepare(stage)                              once, when the stage is built
output = stage(received)                            as ever
work = split.backward_input([output], [gradient])   `received.grad` is there and can be sent
work.run()                                          any time later: weights get their gradients
"""

from recycle_runtime.execution.split_backward.split import Split, WeightWork, prepare

__all__ = ["Split", "WeightWork", "prepare"]

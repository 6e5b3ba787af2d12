"""Conclusions for the whole model from what its chunks say of their gradients. No torch."""

from collections.abc import Iterable, Iterator

from recycle_runtime.protocol.messages.steps import ChunkGradients

_SHOWN = 8

ALL_FROZEN = (
    "no parameter of the model requires a gradient, so nothing would be trained; requires_grad_(True) on "
    "those that should be"
)


class TrainedChunks:
    """All chunks of a model after a step, in its order."""

    def __init__(self, step: int, chunks: Iterable[ChunkGradients], what: str = "stage") -> None:
        """`what` chunks are called: stages, where a stage has one."""
        self._step, self._what = step, what
        self._chunks = sorted(chunks)
        self._cut = max((each.chunk for each in self._chunks if not each.gives_back), default=0)
        """Nothing before it is reached."""

    def mistake(self) -> str | None:
        """Reason why this model should not be trained; None if there is none."""
        if not any(each.trained for each in self._chunks):
            return ALL_FROZEN
        if any(each.without < each.trained for each in self._chunks if each.chunk >= self._cut):
            return None
        where = f" ({self._what} {self._cut} gives none back)" if self._cut else ""
        return (
            f"no parameter that an optimizer has got a gradient in step {self._step}{where}, so nothing "
            "would be trained; is something on the way to the loss detached, or are gradients switched off?"
        )

    def warnings(self) -> Iterator[str]:
        """Warnings about chunks and parameters without gradients, and about buffers that forwards change."""
        if before := [each for each in self._chunks if each.chunk < self._cut and each.trained]:
            names = ", ".join(str(each.chunk) for each in before)
            yield (
                f"warning: {self._what} {self._cut} gave no gradient back in step {self._step}, so "
                f"{self._what} {names} is not trained; is its input detached?"
            )
        for each in self._chunks:
            if each.chunk >= self._cut and each.without and (each.names or each.without == each.trained):
                yield self._unreached(each)
        if buffers := [name for each in self._chunks for name in each.buffers][:_SHOWN]:
            yield (
                f"warning: forwards change {', '.join(buffers)}: every worker has its own, of its own "
                "micro-batches, so a forward that reads them in training trains otherwise than one process"
            )

    def _unreached(self, chunk: ChunkGradients) -> str:
        in_step = f"in step {self._step}"
        if chunk.without == chunk.trained:
            return f"warning: no parameter of {self._what} {chunk.chunk} got a gradient {in_step}"
        shown = chunk.names[:_SHOWN]
        more = f" and {chunk.without - len(shown)} more" if chunk.without > len(shown) else ""
        return (
            f"warning: {', '.join(shown)}{more} of {self._what} {chunk.chunk} got no gradient {in_step}: "
            "the loss does not depend on them"
        )

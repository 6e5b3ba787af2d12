"""Conclusion of whether anything is trained, from what all chunks say of their gradients."""

import pytest

from recycle_runtime.protocol.messages.steps import ChunkGradients
from recycle_runtime.protocol.trained_chunks import ALL_FROZEN, TrainedChunks

TRAINED = ChunkGradients(0, 2, 0, (), gives_back=True)
FROZEN = ChunkGradients(0, 0, 0, (), gives_back=True)
UNREACHED = ChunkGradients(0, 2, 2, ("a", "b"), gives_back=True)
CUT = ChunkGradients(0, 2, 0, (), gives_back=False)
FROZEN_CUT = ChunkGradients(0, 0, 0, (), gives_back=False)


def model(*chunks: ChunkGradients, what: str = "stage") -> TrainedChunks:
    """In any order."""
    numbered = [each._replace(chunk=chunk) for chunk, each in enumerate(chunks)]
    return TrainedChunks(3, reversed(numbered), what)


@pytest.mark.parametrize(
    "good",
    [(TRAINED, TRAINED), (FROZEN, TRAINED), (TRAINED, FROZEN), (FROZEN, CUT), (FROZEN, TRAINED, FROZEN)],
)
def test_nothing_is_said_of_what_is_trained(good: tuple[ChunkGradients, ...]) -> None:
    assert model(*good).mistake() is None
    assert list(model(*good).warnings()) == []


def test_nothing_requires_a_gradient() -> None:
    assert model(FROZEN, FROZEN_CUT).mistake() == ALL_FROZEN


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ((UNREACHED, FROZEN), "step 3, so nothing would be trained"),
        ((TRAINED, FROZEN_CUT), "step 3 (stage 1 gives none back), so nothing would be trained"),
        ((TRAINED, FROZEN_CUT, FROZEN), "step 3 (stage 1 gives none back), so nothing would be trained"),
        ((CUT, CUT, UNREACHED._replace(gives_back=False)), "(stage 2 gives none back)"),
    ],
)
def test_no_gradient_reaches_anything(bad: tuple[ChunkGradients, ...], where: str) -> None:
    assert where in str(model(*bad).mistake())


def test_what_is_not_reached_is_named() -> None:
    assert list(model(TRAINED, FROZEN, TRAINED, CUT, UNREACHED, what="chunk").warnings()) == [
        "warning: chunk 3 gave no gradient back in step 3, so chunk 0, 2 is not trained; is its input "
        "detached?",
        "warning: no parameter of chunk 4 got a gradient in step 3",
    ]
    some = ChunkGradients(0, 20, 10, tuple("abcdefgh"), gives_back=True)
    assert list(model(some).warnings()) == [
        "warning: a, b, c, d, e, f, g, h and 2 more of stage 0 got no gradient in step 3: the loss does not "
        "depend on them"
    ]


def test_buffers_that_forwards_change_are_named() -> None:
    assert list(model(TRAINED, TRAINED._replace(buffers=("a.mean",))).warnings()) == [
        "warning: forwards change a.mean: every worker has its own, of its own micro-batches, so a forward "
        "that reads them in training trains otherwise than one process"
    ]

"""How a command says that it cannot do what was asked. Standard library only."""

DONE, INPUT_ERROR, USAGE, NO_PLAN = 0, 1, 2, 3


class Refused(Exception):  # noqa: N818
    """What was asked for cannot be done: one sentence, and the exit code that goes with it."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code

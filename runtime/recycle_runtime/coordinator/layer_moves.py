"""Layers on their way to another cut, from the order to send them to the switch. Needs no torch."""

from collections.abc import Iterable, Mapping

from recycle_runtime.coordinator.events import Answer, EndMove, Note, Send, StopWanted, Tell
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, NewGeneration, Participant, View
from recycle_runtime.plan.recut import size_text
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.generations import HeldState
from recycle_runtime.protocol.messages.layer_moves import DropLayers, LayersArrived, LayersLost
from recycle_runtime.protocol.messages.members import Member


class LayerMoves(Participant):
    """The move that is under way, and those before it."""

    memory = (
        Memory(
            "layers that travel",
            said=(LayersArrived, LayersLost),
            journal={"move": Field(str | None)},
            lost="the move is given up, and weighed anew",
        ),
    )

    def __init__(self) -> None:
        self.move: LayerMove | None = None
        self.begun = 0
        """Moves in the whole job."""
        self._generation: int | None = None
        """The one that trains; None while there is a change."""
        self._unfinished: str | None = None
        """The layout to which layers were on their way when the coordinator before this one ended."""
        self._switched: LayerMove | None = None
        """The move that the generation to come is the end of."""
        self._untold: LayerMove | None = None
        """The same of the generation that has just begun."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "LayerMoves":
        return cls()

    def hears(self) -> Hears:
        return {LayersArrived: self._arrived, LayersLost: self._lost}

    def recall(self, lines: Lines) -> None:
        for fields in (line.fields for line in lines.all):
            if "generation" in fields:
                self._unfinished = None
            elif "move" in fields:
                self._unfinished = fields["move"]
                self.begun += fields["move"] is not None

    def go_on(self, new: NewGeneration) -> None:
        self._generation = new.number

    def all_returned(self) -> list[Answer]:
        layout, self._unfinished = self._unfinished, None
        if layout is None:
            return []
        told = Tell(f"re-cut to {layout} given up: the coordinator restarted")
        return [*self._drop(self.job.roster.active()), told]

    def begin(self, move: LayerMove) -> list[Answer]:
        """Layers begin to travel; all that get orders are in the generation that runs."""
        assert self._generation is not None
        self.move = move
        self.begun += 1
        members = list(self.job.roster.members())
        move.begin(self.begun, members, self.job.now())
        joiners = len(move.recut.joiners)
        answers: list[Answer] = [
            Note({"move": move.layout}),
            Tell(f"re-cut begins: {size_text(move.recut.size)} of layers for {joiners} workers"),
        ]
        answers += (Send(*sent) for sent in move.orders(self._generation, members).items())
        return answers if move.missing else [*answers, _stop_for(move)]

    def _arrived(self, member: Member, said: LayersArrived) -> list[Answer]:
        move = self.move
        if move is None or move.number != said.move or not self.job.is_current(member, said.generation):
            return []
        return [_stop_for(move)] if move.arrive(member, said.copied.size, self.job.now()) else []

    def _lost(self, member: Member, said: LayersLost) -> list[Answer]:
        if self.move is None or self.move.number != said.move:
            # Of a move that has been given up: its donors send no more.
            return []
        if not self.job.is_current(member, said.generation):
            return []
        return self._give_up(f"{worker_text(member.worker)} has not got its layers: {said.why}")

    def lose(self, worker: Worker, why: str) -> list[Answer]:
        """A worker that did not train is gone; it may have been meant to after the move."""
        return self._give_up(why) if self.move is not None and worker in self.move.cells else []

    def look(self) -> list[Answer]:
        """Now and then."""
        is_late = self.move is not None and self.move.is_late(self.job.now())
        return self._give_up("it takes too long") if is_late else []

    def _give_up(self, why: str) -> list[Answer]:
        """Training goes on under the cut there is."""
        move, self.move = self.move, None
        assert move is not None
        told = move.orders(0, list(self.job.roster.members()))
        *ended, end = _ended(move, why)
        return [*ended, *self._drop(told), end]

    def awaited(self) -> list[Member]:
        """Processes that have their layers, once all have: they have to stop for the switch too."""
        if self.move is None or self.move.missing:
            return []
        return self.move.joiners(self.job.roster.entries)

    def stopping(self) -> list[Member]:
        """Those who stop at a boundary: all who train, and those outside whose layers the next cut needs."""
        active = self.job.roster.active()
        return [*active, *(one for one in self.awaited() if one not in active)]

    def end(self, reports: Mapping[Member, HeldState]) -> tuple[LayerMove | None, list[Answer]]:
        """All have stopped: the move to switch to, if layers have travelled and nothing has come between."""
        move, self.move = self.move, None
        if move is None:
            return None, []
        why = move.obstacle(reports)
        if why is not None:
            return None, _ended(move, why)
        self._switched = move
        return move, _ended(move, None)

    def leave(self) -> None:
        self._generation = None

    def generation(self, new: NewGeneration) -> list[Answer]:
        self._generation = new.number
        self._untold, self._switched = self._switched, None
        return []

    def recovered(self, seconds: float) -> list[Answer]:
        move, self._untold = self._untold, None
        if move is None:
            return []
        moved = f"{size_text(move.received)} moved in {move.arrived - move.began:.3g} s"
        return [Tell(f"re-cut to {move.layout}: {moved}, a pause of {seconds:.3f} s")]

    def _drop(self, members: Iterable[Member]) -> list[Answer]:
        if self._generation is None:
            return []
        return [Send(member, DropLayers(self._generation)) for member in members]


def _stop_for(move: LayerMove) -> StopWanted:
    return StopWanted(f"re-cut to {move.layout}")


def _ended(move: LayerMove, why: str | None) -> list[Answer]:
    told = [] if why is None else [Tell(f"re-cut to {move.layout} given up: {why}")]
    return [Note({"move": None}), *told, EndMove(why)]

"""Trainer of a script: it asks for steps, and gets their results."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recycle_runtime.checkpoint.manifest import FILE
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.copies import refuse_wrappers
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.messages.scripts import Saved
from recycle_runtime.trainer import context
from recycle_runtime.trainer.kept import KeepsState, Kept
from recycle_runtime.trainer.names import GivenData, Model, evaluation_items, model_names
from recycle_runtime.trainer.report import Report
from recycle_runtime.trainer.script import preserved_random
from recycle_runtime.transport.rank_mesh import mesh


class SaveError(ProgramError):
    """Save that could not be written: one sentence."""


class Trainer:
    """Trains a model with the workers of a plan, and goes on when workers fail.

        trainer = recycle.Trainer(layers, loss=cross_entropy, optimizer=lambda parameters: AdamW(parameters))
        for step in trainer.steps(20_000):
            report = trainer.step(dataset)
            if step % 500 == 0:
                trainer.print(step, report.loss, trainer.evaluate(held_out))

    The script runs in every worker process, and all of them must ask for the same: whether to evaluate or to
    stop may depend on the step, on `report` and on results of `evaluate`, which are the same everywhere,
    and not on clocks, random numbers or files of one machine. Nothing of the script runs while its worker
    trains.

    A step that a failure interrupts is made again by the workers that are left; `step` just takes longer.
    The script of a worker that joins runs from the top. Its loop begins with the step that the others have
    made last, which is not made again, so that it enters the body of the loop where the others are.
    """

    def __init__(
        self,
        model: Model,
        *,
        loss: Callable[[Any, Any], torch.Tensor] | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: str | None = None,
        moves_with_steps: Callable[[torch.nn.Module, torch.optim.Optimizer], Any] | None = None,
        weights: str | None = None,
        seed: int | None = None,
        draw_ahead: bool = False,
        compile: bool | Mapping[str, Any] = False,
        layers: Sequence[str | Sequence[str]] | None = None,
        parallelize: Callable[[torch.nn.Module, Any], object] | None = None,
        ranks: Sequence[int] = (),
    ) -> None:
        """`model` is a whole module, a list of (name, module), or a function that builds one of these, of
        which each worker keeps the memory of its own layers alone. `layers` says where a whole module is
        cut, if not at its lists of blocks.

        `loss(output, target)` is the mean over a micro-batch (default: `output.loss`, what a whole module
        has computed itself). `optimizer(parameters)` makes the optimizer of
        some of the parameters, and gets pairs (name, parameter) if its argument is called `named` or
        `named_parameters`; `schedule(optimizer)` makes its scheduler, and `moves_with_steps(module,
        optimizer)` whatever else changes with every step, such as averages of weights. `precision` is
        "bf16" or "bf16-weights", `weights` what to begin with. `seed` is that of parameters, data and dropout
        (default: `--seed`). `draw_ahead` says that data depends on the numbers of micro-batches alone, and
        never on what the body of the loop does: then those of the next step are drawn before it has run.
        `compile` compiles each layer by itself, with torch's own options or with these.
        `parallelize(module, mesh)` distributes the parameters of a layer over the tensor-parallel ranks, and
        `ranks` are further numbers of them that it can do so with: a worker that has lost some goes on.
        """
        self._context = context.take_context()
        self._requests = self._context.requests
        self._data = GivenData(self._context.script)
        options = {
            "schedule": schedule,
            "moves_with_steps": moves_with_steps,
            "WEIGHTS": weights,
            "CLIP_NORM": clip_norm,
            "CLIP_VALUE": clip_value,
            "PRECISION": precision,
            "DRAW_AHEAD": draw_ahead,
            "COMPILE": compile,
            "LAYERS": layers,
            "parallelize": parallelize,
            "RANKS": tuple(ranks) or None,
            "loss": loss,
        }
        refuse_wrappers(self._context.script, model)
        model_name, self._given = model_names(model)
        names = {
            **model_name,
            "optimizer": optimizer,
            "data": self._data.source,
            **{name: value for name, value in options.items() if value is not None},
        }
        self._position: int | None = None
        """The step that comes next, as far as the script has come; None before its first loop."""
        self._asked: int | None = None
        """The step that the loop has given and that has not been made."""
        self._is_made = False
        """True if the others have made that step already."""
        self._is_stopped = False
        self._follows = False
        """True if this worker looks for the loop that the others are in."""
        self._total = 0
        """Steps that the last loop has asked for."""
        self._evaluations: dict[int, int] = {}
        """Number of evaluations before a step, by step."""
        self._saves: dict[int, int] = {}
        self._kept = Kept()
        program = Program(self._context.script, names)
        program.data_comes_later = True
        program.script_arguments = tuple(sys.argv[1:])
        program.tell_unknown_source()
        self._context.life.start(program, seed)

    @property
    def is_main(self) -> bool:
        """True if this worker speaks for all; true on one live worker, and on another if that one fails."""
        self._requests.begin()
        return self._requests.is_main

    @property
    def mesh(self) -> Any:
        """The `DeviceMesh` of the tensor-parallel ranks of this worker, as `recycle.mesh()`."""
        return mesh()

    @property
    def worker(self) -> Worker:
        """This worker's place in the grid: (pipeline, stage)."""
        return self._requests.worker if self._position is not None else self._context.life.worker

    def print(self, *values: object, **options: Any) -> None:
        """As `print`, on the main worker alone."""
        if self.is_main:
            print(*values, **(dict[str, Any](flush=True) | options))

    def steps(self, total: int) -> Iterator[int]:
        """Numbers of steps up to `total` in all, in order and each once; the body makes each with `step`.

        A run that is resumed begins as a worker that joins: with the last step of its checkpoint, which
        is not made again.
        """
        if total < 0:
            raise ProgramError(f"trainer.steps must be given a number of steps from 0, got {total}")
        with preserved_random():
            self._begin()
            assert self._position is not None
            call = self._requests.want(total, None if self._follows else self._position)
            ends = self._requests.loop_begins(call + 1) if self._follows else None
        self._follows = ends is not None and ends <= self._position
        # The others may have left it early, by `stop` or `break`.
        self._total = total if ends is None else min(total, ends)
        self._is_stopped = False
        while self._position < self._total and not self._is_stopped:
            self._asked = self._position
            yield self._position
            if self._is_step_due:
                raise ProgramError(
                    f"step {self._asked} was not made: a loop over trainer.steps calls trainer.step once "
                    "in each pass"
                )

    def _begin(self) -> None:
        """Before the first loop: be part of a group, and know with which step to begin."""
        start = self._requests.begin()
        if self._position is not None:
            return
        self._position = start.step
        self._is_made = self._follows = start.is_made
        if self._is_made and self._kept:
            self._kept.load(self._requests.kept(start.step + 1))

    @property
    def _is_step_due(self) -> bool:
        return self._asked is not None

    def step(self, data: Any) -> Report:
        """Make the step that the loop is at, with its micro-batches of `data`.

        A step has U micro-batches, and step n takes numbers n U to n U + U - 1, whichever data it is given:
        it may be other data in every step, as long as all workers give the same.
        """
        step, self._asked = self._asked, None
        if step is None:
            raise ProgramError(
                "trainer.step is called once in each pass of a loop over trainer.steps, and nowhere else"
            )
        if self._given is not None:
            self._given.check()
        self._data.give(data)
        if not self._is_made:
            with preserved_random():
                self._requests.make(step, data)
        self._is_made = False
        self._position = step + 1
        self._requests.keep(step + 1, self._kept.pack())
        self._requests.forget_rows(step)
        return Report(step, self._requests)

    def evaluate(self, data: Any, *, microbatches: int | None = None) -> float:
        """The mean loss over micro-batches (input, target), without gradients and in evaluation mode.

        `data` is a sequence of them, an iterable that ends, or a function of their number with
        `microbatches` beside it. All workers evaluate together, each its layers; every one gets the result.
        """
        items = evaluation_items(data, microbatches)
        with preserved_random():
            step = self._boundary()
            number = self._evaluations.get(step, 0)
            self._evaluations = {step: number + 1}
            return self._requests.evaluate(step, number, items)

    def save(self, folder: str | Path) -> Path:
        """Save the model, its optimizer and what the script keeps as a checkpoint in this folder; which one.

        All workers call it, and it returns when the checkpoint is complete. It can be resumed from
        (`--checkpoint FOLDER --resume`), exported and read, and is never deleted. `SaveError` on all workers
        if it cannot be written.
        """
        saved = self._save(str(Path(folder).absolute()), stays=True)
        return Path(saved.path)

    def state_dict(self, *, through: str | Path | None = None) -> dict[str, torch.Tensor]:
        """The whole model under its own names, in the memory of the main worker; empty on all others.

        All workers call it. Parameters come by way of files, which go again: in a folder of the coordinator,
        or in the folder `through`. On several nodes, it must be one that all of them have.
        """
        saved = self._save("" if through is None else str(Path(through).absolute()), stays=False)
        folder = Path(saved.path)
        if not self.is_main or not folder.is_dir():
            return {}
        from recycle_runtime.checkpoint.whole_model import CheckpointWeights

        try:
            return dict(CheckpointWeights(folder))
        finally:
            (folder / FILE).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _save(self, folder: str, *, stays: bool) -> Saved:
        with preserved_random():
            step = self._boundary()
            number = self._saves.get(step, 0)
            self._saves = {step: number + 1}
            saved = self._requests.save(step, number, folder, stays=stays)
        if saved.error is not None:
            raise SaveError(f"cannot save to {saved.path}: {saved.error}")
        return saved

    def _boundary(self) -> int:
        """The step before which this worker stands."""
        start = self._requests.begin()
        return start.run_begins if self._position is None else min(self._position, self._total)

    def keep(self, name: str, thing: KeepsState) -> None:
        """Keep the state of an object of the script that changes from step to step, before the first loop.

        A worker that joins and a run that is resumed begin their loop with the state that the object had
        when `step` returned, before the body of the loop has gone on. Its `state_dict()` is made of tensors,
        numbers, strings and containers of these, and is copied after every step.
        """
        if self._position is not None:
            raise ProgramError(f"trainer.keep({name!r}, ...) belongs before the loop over trainer.steps")
        self._kept.add(name, thing)

    def stop(self) -> None:
        """End the loop after this pass, on all workers: decide it by what is the same on all of them."""
        self._is_stopped = True

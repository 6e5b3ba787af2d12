"""One layer of the model as a process holds it: what moves when the model is cut elsewhere.

A program that gives whole stages has one of these for every chunk, which never moves.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, cast

import torch

from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.local_tensors import (
    is_distributed,
    is_slice,
    is_slice_by_hand,
    load_local_state,
    local,
    local_state,
    refuse_other_placements,
    slices_of,
    stepped_parameters,
)
from recycle_runtime.execution.optimizer import LayerOptimizer, Masters, check_optimizer, moving_of
from recycle_runtime.execution.optimizer.by_layer import bytes_in
from recycle_runtime.execution.optimizer.separable import Division, division_of
from recycle_runtime.execution.optimizer.shards import (
    Rows,
    Shard,
    StoredShard,
    all_rows,
    check_whole,
    cut_into_shards,
    rows_of_shards,
    stepped_rows,
    stored_whole,
)
from recycle_runtime.execution.optimizer.undo import copied_options, group_options, option_groups
from recycle_runtime.execution.rank_pieces import pieces, steps_views
from recycle_runtime.execution.resident_experts import EXPERTS, ResidentExperts, whole_experts
from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import name_prefix
from recycle_runtime.program.loading import Program
from recycle_runtime.program.ties import whole_name

SLICES = "slices"
"""In the state of a layer of several ranks: which of its tensors are slices of what, where that is known."""


class Layer:
    """Module, optimizer, what moves with it, and buffers; its gradients belong to the chunk that it is in.

    In `shards`, if there is more than one, the optimizer's work is divided: this process holds what steps
    the shards that it owns, and nothing of the others.
    """

    def __init__(
        self,
        program: Program,
        number: int,
        name: str,
        module: torch.nn.Module,
        *,
        undo_on_host: bool = False,
        shards: int = 0,
        slots: int = 0,
        has_ranks: bool = False,
        computing: torch.nn.Module | None = None,
    ) -> None:
        """`slots`: this process has so many experts of each mixture in it, beside those whose shards it owns;
        0: all. `has_ranks`: other tensor-parallel ranks have this layer too. `computing` is what `module` is
        a piece of: see `rank_pieces`."""
        self._has_ranks = has_ranks
        self._program, self._undo_on_host = program, undo_on_host
        self.number, self.module = number, module
        self.computing = module if computing is None else computing
        """The module with which forwards and backwards compute."""
        self.of_other_ranks: tuple[Layer, ...] = ()
        """The same layer as further ranks have it, for which this process stands too."""
        self.name = name_prefix(name, self.computing)
        """Prefix of the names of its parameters in the whole model, or nothing."""
        named = [(each, value) for each, value in module.named_parameters() if value.requires_grad]
        refuse_other_placements(program.path, named)
        whole = [parameter for _, parameter in named]
        self._own_names = [each for each, _ in named]
        self.parameter_names = [f"{self.name}.{each}" if self.name else each for each in self._own_names]
        """Of the same, in the whole model."""
        self._values = _lowered(program, module, whole)
        """Of weights in a lower precision what they were before, until whoever steps them has taken it."""
        self.parameters = stepped_parameters(whole)
        """Parameters that are trained; of a DTensor the local part."""
        self.has_hooks = any(map(has_hooks, whole))
        """True if the user's code is called with gradients, each of one micro-batch."""
        self.has_distributed = any(map(is_distributed, self.computing.parameters()))
        """True if some are DTensors."""
        self._master_types = [value.dtype for value in self._values or ()]
        self.untrained: list[str] = []
        """Names of parameters that require gradients, and that the optimizer leaves out."""
        self.stepped: LayerOptimizer | None = None
        """None where there is nothing to train, or nothing that the program wants to train, or shards."""
        self.shards: tuple[Shard, ...] = ()
        """Rows of parameters; none where the optimizer is in one piece."""
        self.owned: dict[int, LayerOptimizer] = {}
        """Optimizers of the shards that are held here, but those with nothing to step."""
        self.held: set[int] = set()
        """Shards whose state is here."""
        self.waiting: list[StoredShard] | None = None
        """State of the optimizer, for shards that are to be owned: read when they are."""
        self.is_as_built = True
        """True if any shard can be made of what the program has built."""
        self.why_whole = ""
        """Reason why there are no shards, though some were asked for."""
        self.experts = ResidentExperts(module, self._own_names, self.parameters, slots if shards else 0)
        if self.parameters:
            self._divide(shards)
        self._shapes = [parameter.shape for parameter in self.parameters]
        """Of whole parameters: of experts only those in slots may be here."""
        if self.parameters and not self.shards:
            values, self._values = self._values, None
            self.stepped = self._optimizer(self.parameters, values)
        if self.shards and self.experts and self.experts.stacked.keys() <= set(self._order):
            self.experts.take_slots()
        else:
            self.experts.stacked.clear()
        self.buffers = BufferHistory(self.computing)

    @property
    def title(self) -> str:
        """Name of the layer where every layer needs a name of its own."""
        return self.name or f"layer {self.number}"

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The one of the layer; of one in shards that of the first shard that is owned here."""
        return next((each.optimizer for each in self.steppers), None)

    @property
    def options(self) -> list[dict[str, Any]]:
        """Of the groups of its optimizer; as the program makes it, where it is in shards that others own."""
        if (optimizer := self.optimizer) is not None:
            return copied_options(optimizer)
        groups = self._groups(all_rows(self._shapes)) if self.shards else None
        return [group_options(group) for group in groups or ()]

    @property
    def steppers(self) -> list[LayerOptimizer]:
        """All that is stepped here."""
        owned = [self.owned[shard] for shard in sorted(self.owned)]
        return owned if self.stepped is None else [self.stepped]

    @property
    def shards_here(self) -> set[int]:
        """Those whose state this process has, or can make: as built, or as it was read."""
        can_make = self.waiting is not None or self.is_as_built
        return set(range(len(self.shards))) if can_make else set(self.held)

    def make_whole(self) -> None:
        """Keep the optimizer in one piece after all: another layer of the chunk has to."""
        if self.shards:
            self.experts.give_back()
            self.shards, values, self._values = (), self._values, None
            self.stepped = self._optimizer(self.parameters, values)

    def own(self, shard: int, state: dict[str, Any] | None = None) -> None:
        """Step this shard from now on: as a peer did, or as what was read says, or as built."""
        self.held.add(shard)
        made = self._stepper_of(shard, self._values)
        if made is None:
            return
        self.owned[shard] = made
        if state is not None:
            made.load(state["state"])
            self.experts.load_owned(state["state"].get(EXPERTS, {}), made.rows)
        elif self.waiting is not None:
            read = rows_of_shards(self.waiting, self.shards[shard], self._shapes, self._order)
            values = made.rows if made.masters is None else made.masters.parameters
            self.experts.load_stored(self.waiting, self.shards[shard], values)
            made.load(_with_masters(read, made))

    def beside(self, shard: int, state: dict[str, Any]) -> LayerOptimizer | None:
        """Optimizer that steps this shard as a peer did, on its own memory; None if there is nothing to step.

        This layer may be in use meanwhile.
        """
        made = self._stepper_of(shard, None, is_apart=True)
        if made is not None:
            made.load(state["state"])
            with torch.no_grad():
                for row, value in zip(made.rows, state["weights"], strict=made.masters is None):
                    row.copy_(value)
        return made

    @torch.no_grad()
    def go_on_with(self, shard: int, stepper: LayerOptimizer | None) -> None:
        """Own a shard that was stepped `beside` this layer."""
        self.own(shard, None if stepper is None else {"state": stepper.state()})
        if stepper is not None:
            for row, value in zip(self.owned[shard].rows, stepper.rows, strict=True):
                row.copy_(value)

    def _stepper_of(
        self, shard: int, values: Sequence[torch.Tensor] | None, *, is_apart: bool = False
    ) -> LayerOptimizer | None:
        """None where no row is stepped; `values` are what masters of the whole layer begin with."""
        rows = self.shards[shard]
        if not any(rows):
            return None
        weights = [
            self.experts.rows(number, each, is_empty=is_apart)
            if number in self.experts.stacked
            else stepped_rows(parameter, each, is_apart=is_apart)
            for number, (parameter, each) in enumerate(zip(self.parameters, rows, strict=True))
        ]
        if values is not None:
            values = [each.of(value) for each, value in zip(rows, values, strict=True)]
        elif self._master_types:
            pairs = zip(weights, self._master_types, strict=True)
            values = [weight.detach().to(dtype) for weight, dtype in pairs]
        return self._optimizer(weights, values, weights)

    def stepped_rows(self) -> list[tuple[torch.Tensor, torch.Tensor, Rows]]:
        """Of each weight that is stepped here: itself, and which rows of which parameter it is."""
        return [
            each
            for shard, made in self.owned.items()
            for each in zip(made.rows, self.parameters, self.shards[shard], strict=True)
            if each[2]
        ]

    def disown(self, shard: int) -> None:
        self.held.discard(shard)
        self.owned.pop(shard, None)

    def own_nothing(self) -> None:
        """Give up all shards: they are not those of the other peers any more."""
        self.owned.clear()
        self.held.clear()
        self.forget_values()

    def forget_values(self) -> None:
        """All shards that are to be owned here have been made."""
        self._values = self.waiting = None
        self.experts.forget()
        self.is_as_built = False

    def shard_state(self, shard: int, *, with_weights: bool = False) -> dict[str, Any]:
        """State of an owner of this shard, perhaps with its rows of the weights where they do not follow from
        masters; nothing is copied."""
        made = self.owned.get(shard)
        rows = [list(each) for each in self.shards[shard]]
        state: dict[str, Any] = {"rows": rows, "state": {} if made is None else made.state()}
        if made is not None and self.experts:
            state["state"][EXPERTS] = self.experts.owned_state(self.shards[shard], made.rows)
        if with_weights:
            state["weights"] = [row.detach() for row in _rows_alone(made)]
        return state

    def state(self) -> dict[str, Any]:
        """Everything that makes this layer what it is, between two steps, but shards; nothing is copied."""
        state: dict[str, Any] = {"model": self.experts.without(local_state(self.module)), "optimizer": None}
        if self._has_ranks and not any(map(is_slice_by_hand, self.parameters)):
            state[SLICES] = slices_of(self.computing)
        return state if self.stepped is None else {**state, **self.stepped.state()}

    def load(self, state: dict[str, Any], *, is_stepping: bool = False) -> None:
        """Take over a state that was read or received.

        `is_stepping`: weights come from the owners of their shards, step by step.
        """
        model: dict[str, Any] = state["model"]
        if self.shards and not is_stepping:
            self.own_nothing()
        self.experts.take(model)
        if is_stepping and self.shards:
            model = {**model, **dict(zip(self._own_names, self.parameters, strict=True))}
        given: list[StoredShard] = state.get("shards") or []
        model = self._with_experts(model, given)
        load_local_state(self.module, model)
        self.buffers.forget()
        if self.stepped is None and not self.shards:
            return
        if not given and state["optimizer"] is not None:
            given = [stored_whole(state, self._shapes)]
        # A state without masters was trained in another precision: its weights are the values.
        values = [
            self.experts.whole(number) if number in self.experts.stacked else model[name]
            for number, name in enumerate(self._own_names)
        ]
        if self.stepped is not None:
            if state["optimizer"] is None:
                state = rows_of_shards(given, all_rows(self._shapes), self._shapes, self._order)
            self.stepped.load({"masters": values, **state})
        elif not is_stepping:
            # A peer sends no shards: their owners do.
            self.waiting = given or None
            if given:
                check_whole(given, self._shapes)
            if given and self._master_types:
                pairs = zip(values, self._master_types, strict=True)
                self._values = [value.to(dtype) for value, dtype in pairs]

    def _with_experts(self, model: dict[str, Any], given: Sequence[StoredShard]) -> dict[str, Any]:
        """The state of a module whose experts, if any, may be with the shards of their optimizer."""
        if self.experts:
            return {**model, **self.experts.here()}
        if set(self._own_names) <= model.keys():
            return model
        return {**model, **whole_experts(given, self._own_names, self._shapes)}

    @property
    def state_bytes(self) -> int:
        """About how many bytes a peer sends: parameters, buffers, an optimizer's state in one piece."""
        tensors = [*map(local, self.module.parameters()), *map(local, self.module.buffers())]
        kept = 0 if self.stepped is None else self.stepped.state_bytes
        return sum(map(bytes_in, tensors)) + kept

    def shard_bytes(self, shard: int) -> int:
        """About how many bytes an owner of this shard sends."""
        made = self.owned.get(shard)
        return 0 if made is None else made.state_bytes + sum(map(bytes_in, _rows_alone(made)))

    def _divide(self, shards: int) -> None:
        """Find out how, if shards are asked for; whoever cannot be divided stays in one piece."""
        division = self._division()
        if division is Division.TOGETHER:
            raise ProgramError(
                f"{self._program.path}: the optimizer works on all its parameters together: steps of "
                f"{self.title} are not those of its parameters one by one",
                "every layer has an optimizer of its own, so it would train something else here than in a "
                "plain loop; use one that steps each parameter by itself, such as AdamW",
            )
        if division is Division.PARAMETERS and any(map(is_slice, self.parameters)):
            raise ProgramError(
                f"{self._program.path}: the optimizer works on whole parameters, and {self.title} has slices "
                "of some on each tensor-parallel rank",
                "use one that steps every number by itself, such as AdamW, or `tensor = 1` in the job",
            )
        if not shards:
            return
        if division is Division.UNKNOWN:
            self.why_whole = "its steps cannot be tried on small tensors, or draw random numbers"
        elif self._program.has_movers:
            self.why_whole = "averages of its weights move with its steps"
        else:
            by_rows = division is Division.ROWS
            cut = cut_into_shards(self.parameters, shards, by_rows=by_rows, turn=self.number)
            if self._has_same_groups(cut):
                self.shards = cut
            else:
                self.why_whole = "its groups or rates depend on how large parameters are"

    def _division(self) -> Division:
        """Found out once for layers that are alike, where the program does not choose by names."""
        program, names = self._program, self._told_names()
        looks = tuple((each.shape, *map(str, vars(each).items())) for each in self.parameters)
        key = "division", looks, tuple(names) if program.optimizer_wants_names else ()
        if key not in program.made:
            program.made[key] = division_of(program.optimizer, self.parameters, names)
        return program.made[key]

    def _has_same_groups(self, shards: Sequence[Shard]) -> bool:
        """True if the optimizer of every shard has the groups that the layer's would have."""
        whole = self._groups(all_rows([parameter.shape for parameter in self.parameters]))
        return all(self._groups(rows) == whole for rows in shards if any(rows))

    @cached_property
    def _order(self) -> list[int]:
        """Numbers of parameters in the order in which the optimizer's groups have them."""
        groups = self._groups(all_rows(self._shapes)) or []
        return [number for group in groups for number in group["params"]]

    def _groups(self, rows: Sequence[Rows]) -> list[dict[str, Any]] | None:
        """Of an optimizer of these rows, parameters by their numbers; None where it trains nothing."""
        given = [stepped_rows(*each) for each in zip(self.parameters, rows, strict=True)]
        numbers = {parameter: number for number, parameter in enumerate(given)}
        try:
            groups = option_groups(self._program.optimizer(given, self._told_names()))
        except ProgramError as error:
            if "empty parameter list" in str(error.__cause__):
                return None
            raise
        return [
            {**_plain_options(group), "params": [numbers.get(each, -1) for each in group["params"]]}
            for group in groups
        ]

    @property
    def steps_views(self) -> bool:
        """True if the optimizer can step parts of tensors; found out once in a process."""
        program = self._program
        if self.parameters and "steps views" not in program.made:
            make = partial(program.optimizer, names=self._told_names())
            program.made["steps views"] = steps_views(make, self.parameters)
        return program.made.get("steps views", True)

    def _told_names(self) -> list[str]:
        return [whole_name(self._program.ties, name) for name in self.parameter_names]

    def _optimizer(
        self,
        weights: Sequence[torch.nn.Parameter],
        values: Sequence[torch.Tensor] | None,
        rows: Sequence[torch.nn.Parameter] = (),
    ) -> LayerOptimizer | None:
        """Of these weights; `values` are what masters of them begin with, where they have any."""
        program = self._program
        masters = None if values is None else Masters(weights, values)
        stepped = list(weights) if masters is None else masters.parameters
        try:
            optimizer = program.optimizer(stepped, self._told_names())
        except ProgramError as error:
            if "empty parameter list" in str(error.__cause__):
                # It chooses some parameters of the model, and none of this layer.
                self.untrained = list(self.parameter_names)
                return None
            raise
        check_optimizer(optimizer, stepped)
        held = {parameter for group in option_groups(optimizer) for parameter in group["params"]}
        named = zip(self.parameter_names, stepped, strict=True)
        self.untrained = [name for name, parameter in named if parameter not in held]
        moving = moving_of(program, self.module, optimizer)
        return LayerOptimizer(optimizer, moving, masters, rows, undo_on_host=self._undo_on_host)


def layer_of_ranks(
    program: Program,
    number: int,
    name: str,
    whole: torch.nn.Module,
    ranks: int,
    *,
    undo_on_host: bool = False,
) -> Layer:
    """A layer of a process that stands for so many ranks."""
    named = dict(whole.named_parameters())
    refuse_other_placements(program.path, named.items())
    held = pieces(whole, ranks)
    first, *more = [
        Layer(program, number, name, each, undo_on_host=undo_on_host, has_ranks=True, computing=whole)
        for each in held
    ]
    if program.precision.weights is not None:
        _lowered(program, whole, [each for each in named.values() if each.requires_grad])
    for each in held:
        each.tie()
    for each in more:
        # The first keeps those of the module.
        each.buffers = BufferHistory(torch.nn.Module())
    first.of_other_ranks = tuple(more)
    return first


def _rows_alone(made: LayerOptimizer | None) -> Sequence[torch.nn.Parameter]:
    """Those of weights that no masters stand behind."""
    return () if made is None or made.masters is not None else made.rows


def _with_masters(state: dict[str, Any], made: LayerOptimizer) -> dict[str, Any]:
    """A state without masters was trained in another precision: theirs are what they began with."""
    began = () if made.masters is None else made.masters.parameters
    return {"masters": [each.detach() for each in began], **state}


def _plain_options(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in group.items()
    }


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


def _lowered(
    program: Program, module: torch.nn.Module, parameters: list[torch.nn.Parameter]
) -> list[torch.Tensor] | None:
    """Turn the module into the precision of weights that the program wants, if it wants one; what they were
    before."""
    dtype = program.precision.weights
    if dtype is None:
        return None
    values = [_widened(local(value)) for value in parameters]
    module.to(dtype)
    for parameter in parameters:
        if hasattr(torch.Tensor, "grad_dtype"):
            # Sums over micro-batches and peers lose nothing that a bf16 gradient of one micro-batch has.
            parameter.grad = None
            cast(Any, parameter).grad_dtype = torch.promote_types(dtype, torch.float32)
    return values

"""Layers of a whole model, as lists of modules: found automatically, or given by the program.

    model.embed_tokens | model.layers.0 | model.layers.1 | ... | model.norm, lm_head
    before the blocks    a layer each                          after them

Blocks are the members of the lists in a model (`nn.ModuleList`, `nn.Sequential`, an `nn.ModuleDict` with
numbers as keys). Modules with parameters that stand before, between or after them make up layers of their
own. The order is that of their use (`call_order`). LAYERS in the program says it otherwise:

    LAYERS = ["encoder.blocks", "pool", ["norm", "head"]]

names modules; each is a layer, each member of a list is one, and so is each list of names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from recycle_runtime.program.call_order import in_order_of_use, uses
from recycle_runtime.program.errors import ProgramError

_LEAST_SHARE = 0.05
"""Of the parameters of the largest list: what is smaller is no list of blocks."""


@dataclass(frozen=True, slots=True)
class LayerCalls:
    """One layer: where it begins is the first call of one of its modules."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    """Of modules around the layers, such as a table of positions in the model itself."""

    @property
    def name(self) -> str:
        return (*self.modules, *self.parameters)[0]


def outline(model: nn.Module, said: Any = None) -> tuple[LayerCalls, ...]:
    """The layers of a model in the order of their use; ProgramError if it has none."""
    chosen = _said(model, said) if said is not None else [(name,) for name in _blocks(model)]
    if not chosen:
        raise ProgramError(
            f"{type(model).__name__} has no list of blocks to cut at (nn.ModuleList, nn.Sequential, "
            "nn.ModuleDict with numbers as keys)",
            'name its layers in order: LAYERS = ["embed", "body", "head"]',
        )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    taken = {name: number for number, names in enumerate(chosen) for name in names}
    above = {name[:place] for name in taken for place, letter in enumerate(name) if letter == "."} | {""}
    groups = list(_in_order(model, chosen, taken, above))
    if said is not None and all(group.name in taken for group in groups):
        groups.sort(key=lambda group: taken[group.name])
    inside = tuple(f"{name}." for group in groups for name in group.modules)
    loose = [name for name in parameters if name not in taken and not name.startswith(inside)]
    first = LayerCalls(groups[0].modules, (*groups[0].parameters, *loose))
    return (first, *groups[1:])


def _in_order(
    model: nn.Module, chosen: Sequence[tuple[str, ...]], taken: dict[str, int], above: set[str]
) -> Iterator[LayerCalls]:
    """Layers that were chosen, and between them the other modules with parameters."""
    others: list[str] = []
    seen: set[int] = set()
    modules = dict(model.named_modules())
    for name in _tops(model, "", taken, above, ()):
        if name not in taken:
            others.append(name)
        elif taken[name] not in seen:
            seen.add(taken[name])
            if others:
                yield LayerCalls(tuple(others))
                others = []
            names = chosen[taken[name]]
            yield LayerCalls(
                tuple(each for each in names if each in modules),
                tuple(each for each in names if each not in modules),
            )
    if others:
        yield LayerCalls(tuple(others))


def _tops(
    module: nn.Module, prefix: str, taken: dict[str, int], above: set[str], used: Sequence[str]
) -> list[str]:
    """Modules that are chosen, and the outermost others that have parameters of their own; `used` are names
    of parts of this module that a module around it uses itself, in order."""
    used = used or uses(module)
    found: dict[str, list[str]] = {}
    for child_name, child in module.named_children():
        name = f"{prefix}{child_name}"
        if name in taken or (name not in above and _has_own(child)):
            found[child_name] = [name]
        else:
            inside = [
                each.removeprefix(f"{child_name}.") for each in used if each.startswith(f"{child_name}.")
            ]
            found[child_name] = _tops(child, f"{name}.", taken, above, inside)
    chosen = in_order_of_use([name for name, tops in found.items() if tops], used)
    return [top for name in chosen for top in found[name]]


def _has_own(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _blocks(model: nn.Module) -> list[str]:
    """Members of the lists that hold most of the model."""
    lists = list(_lists(model, ""))
    most = max((_size(members) for _, members in lists), default=0)
    return [name for names, members in lists if _size(members) >= _LEAST_SHARE * most for name in names]


def _lists(module: nn.Module, prefix: str) -> Iterator[tuple[list[str], list[nn.Module]]]:
    """Outermost lists. A member that holds most of one, unlike the others, and lists itself, is opened."""
    if not _is_list(module):
        for name, child in module.named_children():
            yield from _lists(child, f"{prefix}{name}.")
        return
    everything = _size([module])
    kinds = [type(child) for child in module.children()]
    for name, child in module.named_children():
        stands_out = 2 * _size([child]) > everything and kinds.count(type(child)) == 1
        inner = list(_lists(child, f"{prefix}{name}.")) if stands_out else []
        if sum(len(names) for names, _ in inner) > 1:
            yield from inner
        else:
            yield [f"{prefix}{name}"], [module]


def _is_list(module: nn.Module) -> bool:
    """A dictionary with numbers as keys is one, in which blocks of a part of the model keep their names."""
    if isinstance(module, nn.ModuleDict):
        return len(module) > 0 and all(key.isdecimal() for key in module)
    return isinstance(module, nn.ModuleList | nn.Sequential)


def _size(modules: Sequence[nn.Module]) -> int:
    return sum(1 + sum(each.numel() for each in module.parameters()) for module in modules)


def _said(model: nn.Module, said: Any) -> list[tuple[str, ...]]:
    """Modules that LAYERS names; ProgramError for one that the model does not have."""
    if not isinstance(said, list | tuple) or not said:
        raise ProgramError(f"LAYERS must be a list of names of modules, got {said!r}")
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    chosen: list[tuple[str, ...]] = []
    for entry in cast("list[Any]", said):
        names = tuple(cast("list[Any]", entry)) if isinstance(entry, list | tuple) else (entry,)
        for name in names:
            if name not in modules and name not in parameters:
                raise ProgramError(
                    f"LAYERS names {name!r}, which {type(model).__name__} does not have",
                    f"its modules are {', '.join(name for name, _ in model.named_children())}, "
                    "and those inside them with dots between",
                )
        module = modules.get(names[0]) if len(names) == 1 else None
        if module is not None and _is_list(module):
            chosen += [(f"{names[0]}.{child}",) for child, _ in module.named_children()]
        else:
            chosen.append(names)
    return chosen

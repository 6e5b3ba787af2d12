"""Uses of a model that a script has given to its trainer, and the messages about them."""

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.trainer.given_model import GivenModel


def model() -> Any:
    return nn.Sequential(
        nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Sequential(nn.Linear(3, 1, bias=False))
    )


def test_what_is_kept_is_what_was_given() -> None:
    mine = model()
    before = copy.deepcopy(mine.state_dict())
    memory = mine[0].weight.data_ptr()
    given = GivenModel(mine)
    for each in (given.kept, given.copy()):
        assert type(each[0].weight) is nn.Parameter and type(each[1].running_mean) is Tensor
        for name, value in each.state_dict().items():
            assert torch.equal(value, before[name])
        assert each(torch.ones(2, 3)).requires_grad
    assert given.kept[0].weight.data_ptr() == memory != given.copy()[0].weight.data_ptr()


def test_a_model_may_be_kept_printed_counted_and_looked_at() -> None:
    mine = model()
    said, names = str(mine), [name for name, _ in mine.named_parameters()]
    given = GivenModel(mine)
    assert str(mine) == said
    assert [name for name, _ in mine.named_parameters()] == names
    assert sum(each.numel() for each in mine.parameters() if each.requires_grad) == 12 + 6 + 3
    weight = mine[0].weight
    assert isinstance(weight, nn.Parameter) and weight in {weight}
    assert (weight.shape, weight.dtype, weight.device.type) == ((3, 3), torch.float32, "cpu")
    assert f"{weight}" == "<0.weight: (3, 3) of torch.float32, given to recycle.Trainer>"
    assert mine.train() is mine
    mine.eval().train()
    mine.best = 0.5
    given.check()


BATCH = torch.ones(2, 3)
USES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "forward": (lambda mine: mine(BATCH), r"^0\.weight belongs .* \| trainer\.evaluate\(data\)"),
    "forward of a part": (lambda mine: mine[3](BATCH), r"^3\.0\.weight belongs"),
    "state_dict": (lambda mine: mine.state_dict(), r"^0\.weight .* trainer\.state_dict\(\)"),
    "load_state_dict": (lambda mine: mine.load_state_dict(model().state_dict()), "belongs to the model"),
    "save": (lambda mine: torch.save(mine, io.BytesIO()), "belongs to the model"),
    "deepcopy": (copy.deepcopy, "belongs to the model"),
    "requires_grad_": (lambda mine: mine[0].bias.requires_grad_(False), r"^0\.bias .* \| freeze parameters"),
    "requires_grad": (lambda mine: setattr(mine[0].bias, "requires_grad", False), r"\| freeze parameters"),
    "clip": (lambda mine: nn.utils.clip_grad_norm_(mine.parameters(), 1.0), r"\| .* clip_norm="),
    "optimizer": (lambda mine: torch.optim.SGD(mine.parameters(), lr=1.0).zero_grad(), r"\| .* clip_norm="),
    "decay": (lambda mine: sum(each.square().sum() for each in mine.parameters()), r"^0\.weight"),
    "average": (lambda mine: torch.zeros(3, 3).lerp_(mine[0].weight, 0.5), r"^0\.weight"),
    "data": (lambda mine: mine[0].weight.data.zero_(), r"^0\.weight"),
    "statistics": (lambda mine: mine[1].running_mean.mean(), r"^1\.running_mean"),
    "hook": (lambda mine: mine[0].weight.register_hook(print), r"^0\.weight"),
    "several at once": (lambda mine: torch.cat([each.view(-1) for each in mine.buffers()]), r"^1\.running"),
    "moved": (lambda mine: mine.double(), "belongs to the model"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_list", [False, True])
def test_its_values_cannot_be_used(use: str, is_list: bool) -> None:
    mine = model()
    GivenModel(list(mine.named_children()) if is_list else mine)
    does, words = USES[use]
    with pytest.raises(ProgramError) as error:
        does(mine)
    assert re.search(words, f"{error.value} | {error.value.hint}")


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "mode": (lambda mine: mine[1].eval(), r"^1 was changed .* \(train\(\) or eval\(\)\)"),
    "dropout": (lambda mine: setattr(mine[2], "p", 0.1), r"^2 was changed .* \(p\)"),
    "parameter": (
        lambda mine: setattr(mine[0], "weight", nn.Parameter(torch.ones(3, 3))),
        r"^0 .*a parameter",
    ),
    "layer": (lambda mine: mine[3].__setitem__(0, nn.Linear(3, 1)), r"^3 was .*\(a module in it\)"),
    "hook": (lambda mine: mine[0].register_forward_hook(print), r"^0 was changed .*\(forward hooks\)"),
    "function": (lambda mine: setattr(mine[0], "bias", None), r"^0 was changed .*\(a parameter\)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed_at_the_next_step(change: str) -> None:
    mine = model()
    given = GivenModel(mine)
    given.check()
    does, words = CHANGES[change]
    does(mine)
    with pytest.raises(ProgramError, match=words):
        given.check()


@pytest.mark.parametrize("on_tensor", [True, False])
def test_a_hook_that_is_taken_away_is_noticed(on_tensor: bool) -> None:
    mine = model()
    handle = mine[0].weight.register_hook(print) if on_tensor else mine[3].register_forward_hook(print)
    given = GivenModel(mine)
    given.check()
    handle.remove()
    with pytest.raises(ProgramError, match="was changed after"):
        given.check()


def test_writes_through_another_name_are_noticed() -> None:
    mine = model()
    same = mine[0].weight.detach()
    given = GivenModel(mine)
    same.zero_()
    with pytest.raises(ProgramError, match=r"^0 was changed .*\(a parameter or buffer\)"):
        given.check()


def test_tensors_of_other_kinds_are_left_to_others() -> None:
    mine = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3))
    with torch.inference_mode():
        mine[1].register_buffer("scale", torch.ones(3))
    given = GivenModel(mine)
    given.check()
    assert nn.parameter.is_lazy(given.kept[0].weight)


def test_a_model_that_cannot_be_copied_is_one_sentence() -> None:
    mine = model()
    mine[0].later = mine[0].weight * 2
    with pytest.raises(ProgramError, match="the model cannot be copied") as error:
        GivenModel(mine)
    assert error.value.hint == "give recycle.Trainer a function that builds it"

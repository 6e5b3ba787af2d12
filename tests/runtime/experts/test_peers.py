"""Peers with experts in slots compute what one process computes that has all of them."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recycle_runtime.experts.exchange import Alone
from recycle_runtime.experts.mixture import MixtureOfExperts
from recycle_runtime.experts.placement import Placement, place_experts
from tests.runtime.experts.peers import Meeting, ThreadExchange, together

WIDTH = 4


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.GELU(), nn.Linear(5, WIDTH, bias=False))


def here(whole: MixtureOfExperts, meeting: Meeting, peer: int) -> MixtureOfExperts:
    """Rows of one peer: only those of its slots."""
    mixture = copy.deepcopy(whole)
    slots = meeting.placement.peers[peer]
    mixture.experts.exchange, mixture.experts.resident = ThreadExchange(meeting, peer), slots
    for parameter in mixture.experts.parameters():
        parameter.data = parameter.data[list(slots)].clone()
    return mixture


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Those that `place_experts` makes, and any others in which every expert has a slot."""
    experts, peers = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    slots = -(-experts // peers) + draw(st.integers(0, 2))
    if draw(st.booleans()):
        popularity = draw(st.lists(st.integers(0, 9), min_size=experts, max_size=experts))
        return place_experts(popularity, [slots] * peers)
    more = peers * slots - experts
    flat = [*range(experts), *draw(st.lists(st.integers(0, experts - 1), min_size=more, max_size=more))]
    flat = draw(st.permutations(flat))
    return Placement([flat[peer * slots : (peer + 1) * slots] for peer in range(peers)])


@settings(max_examples=40, deadline=None)
@given(placements(), st.data(), st.sampled_from([None, 0.6, 1.3]), st.integers(0, 99))
def test_equal_to_one_process(
    placement: Placement, data: st.DataObject, capacity: float | None, seed: int
) -> None:
    """Some peers serve, and others have micro-batches of different sizes."""
    torch.manual_seed(seed)
    peers, experts = len(placement.peers), placement.experts
    sizes = [data.draw(st.sampled_from([0, 25, 40])) for _ in range(peers)]
    whole = MixtureOfExperts(
        WIDTH, expert, experts=experts, active=min(2, experts), capacity=capacity, auxiliary=0.2
    ).double()
    whole.experts.exchange = Alone(placement)
    inputs = [torch.randn(size, WIDTH).double().requires_grad_() for size in sizes]
    meeting = Meeting(placement)
    mixtures = [here(whole, meeting, peer) for peer in range(peers)]

    def work(peer: int) -> tuple[Tensor, Tensor | None]:
        if not sizes[peer]:
            made = mixtures[peer].experts.serve()
            made.backward(torch.zeros_like(made))
            return made, None
        own = inputs[peer].detach().requires_grad_()
        made = mixtures[peer](own)
        made.square().sum().backward()
        return made.detach(), own.grad

    for (made, gradient), given_tokens in zip(together(meeting, work), inputs, strict=True):
        if len(given_tokens):
            expected = whole(given_tokens)
            expected.square().sum().backward()
            torch.testing.assert_close(made, expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(gradient, given_tokens.grad, rtol=0, atol=1e-12)
    assert meeting.calls == [5] * peers
    sums = [torch.zeros_like(each) for each in whole.experts.parameters()]
    for mixture, slots in zip(mixtures, placement.peers, strict=True):
        for total, parameter in zip(sums, mixture.experts.parameters(), strict=True):
            assert parameter.grad is not None
            total.index_add_(0, torch.tensor(slots), parameter.grad)
    for total, parameter in zip(sums, whole.experts.parameters(), strict=True):
        given_gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(total, given_gradient, rtol=0, atol=1e-12)
    counted = [each.experts.take_counts() for each in (*mixtures, whole)]
    dropped = [0 if each is None else int(each.dropped) for each in counted]
    assert sum(dropped[:-1]) == dropped[-1]

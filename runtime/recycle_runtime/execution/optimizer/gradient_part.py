"""The gradients of one dtype on one device, as views into one long tensor."""

from typing import cast

import torch

_ALIGNMENT = 128
"""Bytes; what a vector instruction or a memory transaction of a device likes."""
_ROW = 1024
"""Elements added up in float32 before float64 takes over."""


class GradientPart:
    """Sharded parameters first, then those that are the same on all tensor-parallel ranks, then flags."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = sorted(parameters, key=lambda parameter: not _is_shard(parameter))
        first = self.parameters[0]
        spacing = max(1, _ALIGNMENT // first.element_size())
        starts: list[int] = []
        self.sharded = self.values = 0
        for parameter in self.parameters:
            starts.append(self.values)
            self.values += -(-parameter.numel() // spacing) * spacing
            if _is_shard(parameter):
                self.sharded = self.values
        size = self.values + len(self.parameters)
        self.flat = torch.zeros(size, dtype=first.dtype, device=first.device)
        self._flags = self.flat[self.values :]
        # `.data` gives each view a version counter of its own: it moves when this gradient is written to.
        self._views = [
            _view(self.flat, start, parameter).data
            for start, parameter in zip(starts, self.parameters, strict=True)
        ]
        self._clean = [_version(view) for view in self._views]
        self.present = [False] * len(self.parameters)
        """Which parameters have a gradient on some peer, once the flags are read."""
        self._must_read = False
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        self.attach()

    def zero(self) -> None:
        self.flat.zero_()
        self._clean = [_version(view) for view in self._views]
        self.attach()

    def attach(self) -> None:
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    def hide(self, everything: bool) -> None:
        """Take away the gradients of parameters that have none in this step."""
        for parameter, is_present in zip(self.parameters, self.present, strict=True):
            if everything or not is_present:
                parameter.grad = None

    def repair(self) -> None:
        """Whoever replaced a gradient meant what it is now."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
                self._clean[index] = _version(view)
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient.detach())
            parameter.grad = view

    def raise_flags(self) -> None:
        versions = enumerate(zip(self._views, self._clean, strict=True))
        unwritten = [index for index, (view, clean) in versions if _version(view) == clean]
        self._flags.fill_(1)
        for index in unwritten:
            # What a replayed graph has written moves no counter.
            self._flags[index] = self._views[index].ne(0).any()
        self._must_read = bool(unwritten)

    def read_flags(self) -> None:
        """Reading means waiting for the device, so it is done only where the answer is open."""
        if not self._must_read:
            self.present = [True] * len(self._views)
            return
        flags = cast("list[float]", self._flags.tolist())  # pyright: ignore[reportUnknownMemberType]
        self.present = [flag != 0 for flag in flags]

    def sum_of_squares(self, tensor_parallel_rank: int) -> torch.Tensor:
        """In two levels: as fast as one, and good to nine digits where a long float32 sum has lost one in a
        hundred."""
        values = self.flat[: self.values if tensor_parallel_rank == 0 else self.sharded]
        whole = values.numel() // _ROW * _ROW
        rows = _norms(values[:whole].view(whole // _ROW, _ROW)).to(torch.float64)
        rest = values[whole:].abs().to(torch.float64)
        return rows.square().sum() + rest.square().sum()


def _is_shard(parameter: torch.Tensor) -> bool:
    return bool(getattr(parameter, "tensor_parallel", False))


def _version(tensor: torch.Tensor) -> int:
    return tensor._version  # pyright: ignore[reportPrivateUsage]


def _view(flat: torch.Tensor, start: int, parameter: torch.Tensor) -> torch.Tensor:
    """Laid out as the parameter is, which optimizers reward."""
    layout = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, layout, start)


def _norms(rows: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else None
    return cast(
        "torch.Tensor",
        torch.linalg.vector_norm(rows, dim=1, dtype=dtype),  # pyright: ignore[reportUnknownMemberType]
    )

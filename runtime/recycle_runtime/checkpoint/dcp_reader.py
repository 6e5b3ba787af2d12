"""Base of the readers of tensors for `torch.distributed.checkpoint`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, StorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.futures import Future


class TensorReader(StorageReader):
    """Reads tensors one by one from a place that is known when it is made."""

    @abstractmethod
    def described_tensors(self) -> Mapping[str, torch.Tensor]:
        """Tensors without memory, which show type and shape."""

    @abstractmethod
    def fill(self, item: ReadItem, target: torch.Tensor) -> None:
        """Read what an item asks for into its memory."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """There is one place to read."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=tensor.dtype),
                    tensor.shape,
                    [ChunkStorageMetadata(torch.Size([0] * tensor.dim()), tensor.shape)],
                )
                for name, tensor in self.described_tensors().items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Everything has been looked at already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target: Any = planner.resolve_tensor(item)
            self.fill(item, target)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

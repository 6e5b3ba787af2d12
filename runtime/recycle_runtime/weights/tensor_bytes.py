"""Tensors as plain bytes, and bytes as tensors."""

import ctypes

import torch


def as_type(data: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Bytes as what they stand for."""
    return data.view(dtype).view(shape)


def size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU itself, not a copy; the tensor must outlive it."""
    assert tensor.device.type == "cpu" and tensor.is_contiguous()
    array: ctypes.Array[ctypes.c_ubyte] = (ctypes.c_ubyte * size_of(tensor)).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")

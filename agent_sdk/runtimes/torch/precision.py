"""What a processor computes float32 of a graph in: as it says, in tf32, or in float16. Chosen by the user."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from agent_sdk.errors import UnsupportedOp
from hope_schema import TensorType

_SWITCHES = threading.RLock()
"""torch's switches hold for the whole process: whoever launches or captures kernels has this lock."""
FOREIGN: Final = frozenset({"int4", "uint4"})


@dataclass(frozen=True)
class Precision:
    """A way to compute.

    Attributes:
        name: ``fp32``, ``tf32`` or ``fp16``.
        channels_last: whether activations of convolutions stand with their channels last.
    """

    name: str
    channels_last: bool = False

    @property
    def half(self) -> bool:
        """Whether activations and weights are held as float16."""
        return self.name == "fp16"

    def dtype(self, stated: torch.dtype) -> torch.dtype:
        """The type in which tensors of a stated type are held."""
        return torch.float16 if self.half and stated == torch.float32 else stated

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with its channels where images have them."""
        if self.channels_last and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def taken(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain tensor as it is held, by one copy at most."""
        if (dtype := self.dtype(tensor.dtype)) == tensor.dtype:
            return self.laid_out(tensor)
        images = self.channels_last and tensor.dim() == 4
        return tensor.to(dtype, memory_format=torch.channels_last if images else torch.preserve_format)

    def held(self, kind: TensorType) -> TensorType:
        """The type in which a tensor of the graph is held. Raises UnsupportedOp where torch has none."""
        if kind.dtype in FOREIGN or not hasattr(torch, kind.dtype):
            raise UnsupportedOp(f"torch has no tensors of type {kind.dtype}")
        if self.half and kind.dtype == "float32":
            return TensorType(shape=kind.shape, dtype="float16")
        return kind

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Set torch's switches, which are the process's, and give them back."""
        backends: Any = torch.backends
        products, convolutions = backends.cuda.matmul, backends.cudnn.conv
        wanted = "tf32" if self.name == "tf32" else "ieee"
        with _SWITCHES, torch.no_grad():
            before = products.fp32_precision, convolutions.fp32_precision, torch.backends.cudnn.benchmark
            products.fp32_precision = convolutions.fp32_precision = wanted
            torch.backends.cudnn.benchmark = True
            try:
                yield
            finally:
                products.fp32_precision, convolutions.fp32_precision, torch.backends.cudnn.benchmark = before

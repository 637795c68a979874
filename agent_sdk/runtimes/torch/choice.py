"""What the id of a torch processor says, and which there are; torch itself is imported only to look for devices."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hope_schema import Processor

PRECISIONS: Final = ("fp32", "tf32", "fp16")
"""What float32 of a network may be computed in; the first is what the model says."""
MIXED: Final = "mixed"
"""A processor for each of them, on the same resources and the same tensors: the planner chooses op by op."""
DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Where the driver of a GPU shows itself; torch, which takes seconds to import, is not asked elsewhere."""


@dataclass(frozen=True)
class Choice:
    """A device, in a precision, perhaps a part of it.

    Attributes:
        device: as torch names it.
        precision: one of ``PRECISIONS``.
        multiprocessors: how many of the GPU's; None for all.
    """

    device: str
    precision: str = "fp32"
    multiprocessors: int | None = None

    @property
    def id(self) -> str:
        """The processor's id."""
        parts = [self.device]
        if self.precision != "fp32":
            parts.append(self.precision)
        if self.multiprocessors is not None:
            parts.append(f"{self.multiprocessors}sm")
        return "/".join(parts)


def parsed(text: str, precision: str = "fp32") -> Choice | None:
    """What an id says, in ``precision`` unless it names one itself; None where it is no torch processor's."""
    found = re.fullmatch(r"(cuda:\d{1,3}|xpu:\d{1,3}|mps|cpu)(?:/(fp32|tf32|fp16))?(?:/([1-9]\d{0,3})sm)?", text)
    if found is None or (found[3] and not text.startswith("cuda")):
        return None
    return Choice(found[1], found[2] or precision, int(found[3]) if found[3] else None)


def choices(text: str, precision: str = "fp32") -> list[Choice]:
    """What an id says, in each of the precisions that are wanted; nothing where it is no torch processor's."""
    wanted = [precision]
    if precision == MIXED:  # elsewhere tf32 is float32
        wanted = [one for one in PRECISIONS if one != "tf32" or text.startswith("cuda")]
    return list(dict.fromkeys(choice for one in wanted if (choice := parsed(text, one)) is not None))


def installed() -> bool:
    """Whether the package is there; nothing is imported."""
    return find_spec("torch") is not None


def accelerators(precision: str = "fp32") -> list[Choice]:
    """The accelerators that torch drives here, in the precisions wanted. Raises what importing torch raises."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return []
    import torch

    found = []
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    return [choice for device in found for choice in choices(device, precision)]


def without_effect(precision: str, planned: Iterable[Processor]) -> str:
    """What is to be said of a precision that none of these processors computes in; nothing where one may."""
    if precision == PRECISIONS[0] or any(spec.runtime == "torch" for spec in planned):
        return ""
    return f"the precision {precision} changes nothing here: torch alone computes in it, on a GPU or named, as cpu/fp16"

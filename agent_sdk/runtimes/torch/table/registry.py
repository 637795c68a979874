"""The table itself."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch

from agent_sdk.errors import UnsupportedOp
from agent_sdk.runtimes.torch.node import Node

Call: TypeAlias = Callable[..., Any]
"""A function of tensors, and of None for inputs that are left out."""
Maker: TypeAlias = Callable[[Node], Call]
OtherMaker = TypeVar("OtherMaker", bound=Callable[..., Call | None])

MAKERS: dict[str, Maker] = {}
"""What makes the call of each op type."""
OTHERS: dict[tuple[str, ...], list[Callable[..., Call | None]]] = {}
"""Other calls for an op, or for several in a row; their makers return None where they do not apply."""


def op(*types: str) -> Callable[[Maker], Maker]:
    """Enter a maker into the table."""

    def enter(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(types, maker))
        return maker

    return enter


def other(*types: str) -> Callable[[OtherMaker], OtherMaker]:
    """Enter another way to run ops of these types in a row; which way is fastest, the device tells."""

    def enter(maker: OtherMaker) -> OtherMaker:
        OTHERS.setdefault(types, []).append(maker)
        return maker

    return enter


def call_for(node: Node) -> Call:
    """The torch call for an op. Raises UnsupportedOp where there is none."""
    maker = MAKERS.get(node.type)
    if maker is None:
        raise UnsupportedOp(f"op {node.where}: the torch runtime has no call for this type")
    return maker(node)


class Constant:
    """A tensor that a call needs beside its inputs: copied to each device once, at the call's first run there.

    NOTE: a copy from the host cannot be captured, so whoever captures a call must have run it before.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value
        self._at: dict[torch.device, torch.Tensor] = {}

    def at(self, device: torch.device) -> torch.Tensor:
        """The tensor on this device."""
        if device not in self._at:
            self._at[device] = self._value.to(device)
        return self._at[device]

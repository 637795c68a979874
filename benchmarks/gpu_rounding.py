"""The error that a number format alone makes of a network: what an answer of ours may be held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Model
from agent_sdk.runtimes.torch.kernel import Line, build
from agent_sdk.runtimes.torch.precision import Precision
from hope_schema import merge


def rounding_error(
    model: Model,
    precision: str,
    feeds: Mapping[str, np.ndarray],
    right: Mapping[str, np.ndarray],
    device: torch.device,
) -> float:
    """The error that a format alone makes: float32 arithmetic on numbers rounded as the precision holds them.

    In tf32 what convolutions and products of matrices read is rounded, in fp16 every tensor.
    """
    exact = Precision("fp32")
    memory = {name: torch.from_numpy(array).to(device) for name, array in feeds.items()}
    everywhere = precision == "fp16"
    with exact.switched():
        for super_op in merge(model.graph):
            kernel = build(super_op, model, exact, device)
            weighs = any(_is_weight(argument) for line in kernel.lines for argument in line.arguments)
            given = [memory[name] for name in kernel.inputs]
            if everywhere or weighs:
                kernel = replace(
                    kernel, lines=tuple(_rounded_line(line, precision, everywhere) for line in kernel.lines)
                )
                given = [_rounded(tensor, precision) for tensor in given]
            memory.update(zip(kernel.outputs, kernel(*given), strict=True))
    return relative_error({name: memory[name].cpu().numpy() for name in right}, right)


def _rounded_line(line: Line, precision: str, everywhere: bool) -> Line:
    arguments = (_rounded(one, precision) if everywhere or _is_weight(one) else one for one in line.arguments)
    return replace(line, arguments=tuple(arguments))


def _is_weight(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and argument.dim() > 1


def _rounded(value: Any, precision: str) -> Any:
    """The nearest number of a format; tf32 has ten bits of mantissa, as fp16, and the exponents of float32."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or precision == "fp32":
        return value
    if precision == "fp16":
        return value.half().float()
    return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

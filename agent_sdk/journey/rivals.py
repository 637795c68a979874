"""Whom a plan is tried against: the likeliest single processors, and the runtimes as their own users run them."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Final

from agent_sdk.engine import Device, Executor
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import ExecutionError
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Processor

RIVALS: Final = 3
"""Single processors that a plan is tried beside; one fewer is kept ready, with the runtimes as their users run them."""


UNFIT: Final = (ExecutionError, MemoryError)
"""What is raised where something cannot run on this device at present: a processor refuses, fails, hangs, or there is
no memory."""


def distinct(processors: Mapping[str, Processor], besides: Collection[str] = ()) -> list[str]:
    """One processor id per kind that is not among ``besides``: equals are equally fast."""
    kinds: dict[str, str] = {}
    for name, processor in processors.items():
        kinds.setdefault(processor.spec.kind, name)
    return [name for kind, name in kinds.items() if kind not in besides]


def likeliest(found_us: Mapping[str, float], processors: Mapping[str, Processor], most: int) -> list[str]:
    """Names of the fastest processors, and of one that leaves cores to others: what may be best beside other work.

    Args:
        found_us: what the whole model takes on each, microseconds; other names may stand among them.
        processors: this device's, by name.
        most: how many names to return at most.
    """
    width = {name: len(processors[name].spec.resources) for name in found_us.keys() & processors.keys()}
    names = sorted(width, key=lambda name: (found_us[name], name))
    narrow = [name for name in names if width[name] < max(width.values())]
    if not narrow or narrow[0] in names[:most]:
        return names[:most]
    return [*names[: max(1, most - 1)], narrow[0]][:most]


def compiled_singles(
    names: Iterable[str], model: Model, device: Device, in_flight: int = 1
) -> tuple[dict[str, Executor], dict[str, str]]:
    """The whole model ready on each of these processors; and the refusals of those that cannot run it."""
    ready: dict[str, Executor] = {}
    refused: dict[str, str] = {}
    with ExitStack() as opened:
        for name in names:
            try:
                ready[name] = opened.enter_context(whole_run(model, device.processors[name], device, in_flight))
            except UNFIT as error:
                refused[name] = str(error) or f"there is no memory for the whole network on '{name}'"
        opened.pop_all()
    return ready, refused

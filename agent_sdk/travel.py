"""Plans that travel: one file that a device starts from without measuring, solving or asking anybody.

It holds a plan, what its rivals took, and which network, shapes and kind of device that is true of; nothing of who made
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from agent_sdk.errors import InputError, PlanMismatchError
from agent_sdk.files import read_whole
from agent_sdk.selection.starts import Start
from agent_sdk.selection.whole import Openable
from hope_schema import PlanReply, Processor
from hope_schema.base import Contract, Microseconds

MARK: Final = b"hope-plan 1 "
"""How a plan file begins; the SHA-256 of all that follows it, and a line break, come next."""


class TravellingPlan(Contract):
    """What a plan file holds.

    Attributes:
        model: the network's name, for people.
        content: SHA-256 of the network's file.
        shapes: of its inputs.
        kinds: kind of each processor of the plan, by id.
        start: who answers first.
        reply: the plan as the planner served it.
        trial_us: what the plan and its rivals took.
    """

    model: str
    content: str
    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, str]
    start: Start
    reply: PlanReply
    trial_us: dict[str, Microseconds]


def content_digest(source: Openable) -> str:
    """SHA-256 of a network's file."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_plan(path: Path, plan: TravellingPlan) -> None:
    """Write a plan file. Raises InputError where that cannot be done."""
    body = plan.model_dump_json().encode()
    try:
        path.write_bytes(MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError as error:
        raise InputError(f"the plan cannot be written to '{path}': {error.strerror}") from error


def read_plan(path: Path) -> TravellingPlan:
    """Read a plan file. Raises InputError, saying the cure, for one that is missing, damaged or none."""
    cure = f"export it again: hope-agent plan export MODEL -o {path}"
    try:
        data = read_whole(path)
    except OSError as error:
        raise InputError(f"the plan file '{path}' cannot be read: {error.strerror or error}") from error
    head, _, body = data.partition(b"\n")
    if not head.startswith(MARK):
        raise InputError(f"'{path}' is no plan file of this release; {cure}")
    if head != MARK + hashlib.sha256(body).hexdigest().encode():
        raise InputError(f"the plan file '{path}' is damaged or was cut off; {cure}")
    try:
        return TravellingPlan.model_validate_json(body)
    except ValidationError as error:
        raise InputError(f"the plan file '{path}' was written by another release; {cure}") from error


def refuse_for_device(plan: TravellingPlan, soc: str, processors: Iterable[Processor]) -> None:
    """Raise PlanMismatchError where a plan was made for another kind of device, or other releases of its runtimes."""
    kinds = {processor.id: processor.kind for processor in processors}
    made = plan.reply.plan
    if made.soc != soc:
        raise PlanMismatchError(
            f"the plan file is for '{made.soc}', this device is '{soc}'; export one on a device of this kind"
        )
    for name, kind in plan.kinds.items():
        if kinds.get(name) != kind:
            raise PlanMismatchError(
                f"the plan file is for processor '{name}' ({kind}), here is {kinds.get(name, 'none')}; export it again "
                "with the runtimes that are installed here"
            )

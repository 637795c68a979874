"""Plans that travel: one file that a device starts from without measuring, solving or asking anybody.

It holds a plan, what its rivals took, and which network, shapes and kind of device that is true of; nothing of who made
it. A start looks at what it is for before anything is loaded, and compares the graphs before the plan answers.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from agent_sdk.errors import InputError, PlanMismatchError
from agent_sdk.files import read_whole, replace_whole
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.starts import Start, start_after
from agent_sdk.model import Model, Shapes
from agent_sdk.planner.client import ServedPlan, Settled
from agent_sdk.planner.supplier import Obtained
from hope_schema import PlanReply, Processor
from hope_schema.base import Contract, Microseconds

MARK: Final = b"hope-plan 4 "
"""How a plan file begins; the SHA-256 of all that follows it, and a line break, come next."""


class TravellingPlan(Contract):
    """What a plan file holds.

    Attributes:
        model: the network's name, for people.
        kinds: kind of each processor of the plan, by id.
        start: who answers first.
        trial_us: what the plan and its rivals took.
        reply: the plan as the planner served it.
    """

    model: str
    fingerprint: str
    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, str]
    start: Start
    trial_us: dict[str, Microseconds]
    reply: PlanReply

    def obtained(self) -> Obtained:
        """Its plan, as one that a planner served."""
        return Obtained(ServedPlan(reply=self.reply, settled=Settled(trial_us=self.trial_us)), "file", cached=True)


def pack_plan(
    model: str, fingerprint: str, prepared: Prepared, reply: PlanReply, processors: Iterable[Processor]
) -> TravellingPlan:
    """What a prepared model's plan needs to travel; ``processors`` are those that it uses."""
    graph = prepared.model.graph
    return TravellingPlan(
        model=model,
        fingerprint=fingerprint,
        shapes={name: graph.tensor[name].shape for name in graph.inputs},
        kinds={spec.id: spec.kind for spec in processors},
        start=start_after(prepared),
        trial_us=dict(prepared.quiet_us),
        reply=reply,
    )


def write_plan(path: Path, plan: TravellingPlan) -> None:
    """Write a plan file. Raises InputError where that cannot be done; an earlier one is whole until then."""
    body = plan.model_dump_json().encode()
    data = MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(data)
        else:
            target = Path(os.path.realpath(path))  # unlike resolve, it takes a link that leads to itself
            target.parent.stat()  # else the folder would be made
            replace_whole(target, data, mode=0o666)  # it is made to be passed on, like anything that a user saves
    except OSError as error:
        raise InputError(f"the plan cannot be written to '{path}': {error.strerror}") from error


def read_plan(path: Path, soc: str, processors: Iterable[Processor], shapes: Shapes) -> TravellingPlan:
    """Read a plan file for this device and these shapes.

    Raises InputError, saying the cure, for one that is missing, damaged or none, and PlanMismatchError for one of
    another kind of device, other releases of its runtimes, or other shapes.
    """
    command = f"hope-agent plan export MODEL -o {path}"
    cure = f"export it again: {command}"
    try:
        data = read_whole(path)
    except FileNotFoundError as error:
        raise InputError(f"there is no plan file '{path}'; export one: {command}") from error
    except OSError as error:
        raise InputError(f"the plan file '{path}' cannot be read: {error.strerror or error}; {cure}") from error
    head, _, body = data.partition(b"\n")
    if not head.startswith(MARK):
        raise InputError(f"'{path}' is no plan file of this release; {cure}")
    if head != MARK + hashlib.sha256(body).hexdigest().encode():
        raise InputError(f"the plan file '{path}' is damaged or was cut off; {cure}")
    try:
        plan = TravellingPlan.model_validate_json(body)
    except ValidationError as error:
        raise InputError(f"the plan file '{path}' was written by another release; {cure}") from error
    _refuse_unfit(plan, soc, processors, shapes)
    return plan


def refuse_other_network(plan: TravellingPlan, model: Model | None, called: str) -> None:
    """Raise PlanMismatchError where a plan was made for another network than this one."""
    if model is None or model.graph.model_hash != plan.reply.plan.model_hash:
        raise PlanMismatchError(
            f"the plan file is for another network, '{plan.model}'; "
            f"export one of this: hope-agent plan export {called} -o FILE"
        )


def _refuse_unfit(plan: TravellingPlan, soc: str, processors: Iterable[Processor], shapes: Shapes) -> None:
    kinds = {processor.id: processor.kind for processor in processors}
    if (own := plan.reply.plan.soc) != soc:
        raise PlanMismatchError(
            f"the plan file is for '{own}', this device is '{soc}'; export one on a device of this kind"
        )
    for name, kind in plan.kinds.items():
        if kinds.get(name) != kind:
            raise PlanMismatchError(
                f"the plan file is for processor '{name}' ({kind}), here is {kinds.get(name, 'none')}; export it again "
                "with the runtimes that are installed here"
            )
    for name, shape in shapes.items():
        if plan.shapes.get(name) != tuple(shape):
            made_for = ", ".join(f"{own}={','.join(map(str, sizes))}" for own, sizes in plan.shapes.items())
            raise PlanMismatchError(f"the plan file is for the shapes {made_for}; export one of those that are wanted")

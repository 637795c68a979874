"""What can go wrong between a plan and its outputs.

.. code-block:: text

    agent_sdk.errors.InputError
    ├── PlanMismatchError          a plan for another model, or naming processors this device lacks
    ├── IllegalPlanError           a plan that contradicts the model: an op missing, an order that cannot run
    └── FeedError                  run() was given wrong names, shapes or element types
    agent_sdk.errors.ExecutionError
    ├── SegmentFailedError         a segment raised; says which processor and ops, the cause is chained
    ├── RunTimeoutError            the watchdog ended a run
    └── DeviceClosedError          the device was closed, or the processor is stuck in an earlier run
"""

from __future__ import annotations

from agent_sdk.errors import ExecutionError, InputError


class IllegalPlanError(InputError):
    """The plan contradicts the model or itself, so no order of execution exists."""


class FeedError(InputError):
    """The arrays given to ``run`` do not match the model's inputs."""


class SegmentFailedError(ExecutionError):
    """A segment raised while it ran; ``__cause__`` is what it raised.

    Attributes:
        processor: id of the processor it ran on.
        segment: index of the segment in its program; -1 where a tensor could not be copied.
        ops: source op ids of the segment.
    """

    def __init__(self, processor: str, segment: int, ops: tuple[str, ...], reason: BaseException) -> None:
        self.processor = processor
        self.segment = segment
        self.ops = ops
        text = f"{type(reason).__name__}: {reason}" if str(reason) else f"{type(reason).__name__}: no further detail"
        if segment < 0:
            super().__init__(f"{ops[0]} failed: {text}")
            return
        shown = f"op '{ops[0]}'" if len(ops) == 1 else f"{len(ops)} ops, '{ops[0]}' to '{ops[-1]}'"
        super().__init__(f"segment {segment} ({shown}) failed on '{processor}': {text}")


class RunTimeoutError(ExecutionError):
    """The run did not finish within its time; the message names what each processor was doing."""


class DeviceClosedError(ExecutionError):
    """The device takes no runs any more, or a processor still hangs in a run that was given up."""

"""One network's plans, each for one set of input shapes, and the whole network, which answers where there is none.

At shapes that were not prepared the best single runtime answers with the whole network while a plan is made behind it;
a bounded number of plans is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from agent_sdk.cancel import Cancel
from agent_sdk.closing import Closes
from agent_sdk.engine.ports import NEW, check_feed, check_output
from agent_sdk.engine.turn import NOW, Turn
from agent_sdk.errors import DeviceClosedError, InputError, ModelError, ProcessorError, SegmentFailedError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.preparing import Feed, Preparing
from agent_sdk.journey.ready import Ready
from agent_sdk.journey.serving import Serving
from agent_sdk.journey.steps import Journey
from agent_sdk.journey.whole import Whole
from agent_sdk.model import Port
from agent_sdk.runtimes.ort.whole import WholeOrt


class Plans(Closes):
    """What answers a network's runs; made by ``Agent.load``. May be used from any number of threads.

    In a child of the process that made it, what answered there as a whole answers on.

    Args:
        journey: the network's steps to whoever answers.

    Attributes:
        ready: its plans, one for each set of shapes.
        whole: the whole network, which answers where there is none.
        preparing: how its plans come to be ready.
    """

    def __init__(self, journey: Journey) -> None:
        self.shapes, self.in_flight = journey.shapes or {}, journey.in_flight
        self._cancel = Cancel(journey.services.cancel)
        self.ready = Ready()
        self.whole = Whole(journey, self._cancel)
        self.preparing = Preparing(journey, self.ready, self.whole, self._cancel)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What has to be given, as the file has it: symbols stand where any size may come."""
        return self.whole.get().inputs if self.preparing.read is None else self.preparing.read.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What is computed."""
        return self.whole.get().outputs if self.preparing.read is None else self.preparing.read.outputs

    @property
    def providers(self) -> tuple[str, ...]:
        """What answered last, or will answer: processors, or the runtime that runs the whole network."""
        if self.ready.last is not None:
            return self.ready.last.executor.program.processors_used
        return (self.whole.loaded.runtime,) if self.whole.loaded is not None else ()

    def said(self) -> str:
        """Who answers, in words."""
        if self.ready.last is None:
            return f"the whole network on {self.providers[0]}" if self.providers else "nothing is ready yet"
        return self.ready.last.said()

    def run(
        self,
        feed: Feed,
        *,
        into: Mapping[str, np.ndarray] = NEW,
        timeout_s: float | None = None,
        turn: Turn = NOW,
    ) -> dict[str, Any]:
        """Compute the outputs by name, in arrays of ``into`` if any. Raises like ``Session.run``.

        What the plan and its rivals all fail, and what they are not trusted with, the whole network answers, or says
        what is wrong with it.
        """
        while not isinstance(taken := self._takes(feed) or self._answering(feed), WholeOrt):
            prepared, serving = taken
            try:
                outputs, trace = serving.run(feed, into=into, timeout_s=timeout_s, turn=turn)
                if trace.ordinary:
                    return outputs
                whole = self.whole.get()
                break
            except DeviceClosedError:
                # Other shapes, or a newer plan, may have taken its place since it was looked up.
                if self.ready.closed or (serving is prepared.serving and self.ready.holds(prepared)):
                    raise
            except SegmentFailedError as error:
                whole = self._whole_after(error)
                break
        else:
            whole = taken
        outputs = self._answered_whole(whole, feed, turn)
        if (ready := self._ready_at(feed)) is not None:
            ready.learn(feed, outputs)
        self.preparing.answered(feed)
        self.ready.count(f"whole:{whole.runtime}")
        for name, array in into.items():
            check_output(name, np.shape(outputs[name]), outputs[name].dtype, array)
            array[...] = outputs[name]
        return {**outputs, **into}

    def _answered_whole(self, whole: WholeOrt, feed: Feed, turn: Turn) -> dict[str, Any]:
        try:
            return whole.run(feed, key=turn.key)
        except InputError:
            wanted = {port.name: (port.shape, dtype) for port in self.inputs if (dtype := port.dtype) is not None}
            if len(wanted) == len(self.inputs):  # then the refusal reads as it does where a plan answers
                optional = {port.name for port in whole.about.optional}
                check_feed(wanted, {name: value for name, value in feed.items() if name not in optional})
            raise

    def at(self, feed: Feed) -> Prepared | None:
        """What is ready for these inputs; None where the whole network answers them."""
        prepared = self._ready_at(feed)
        return prepared if prepared is not None and prepared.admits(feed) else None

    def _takes(self, feed: Feed) -> tuple[Prepared, Serving] | None:
        """What is ready for these inputs, and who runs them there and looks at their floats meanwhile."""
        prepared = self._ready_at(feed)
        serving = prepared.taking(feed) if prepared is not None else None
        return None if prepared is None or serving is None else (prepared, serving)

    def _ready_at(self, feed: Feed) -> Prepared | None:
        """What is ready for inputs of these shapes, whatever their values."""
        if self._gives_optional(feed):
            return None
        return self.ready.at(self.preparing.key_of(feed))

    def _gives_optional(self, feed: Feed) -> bool:
        """Whether an initialiser is given that is an input too: plans have its own value in them."""
        return len(feed) > len(self.inputs) and any(port.name in feed for port in self.whole.about.optional)

    def _answering(self, feed: Feed) -> tuple[Prepared, Serving] | WholeOrt:
        """Who answers: decided together with who takes over from whom, so that nobody is asked who has just gone."""
        with self.ready.lock:
            return self._takes(feed) or self.whole.get()

    def _whole_after(self, error: SegmentFailedError) -> WholeOrt:
        """The whole network, to answer what failed otherwise; raises the failure where no runtime loads it."""
        try:
            whole = self.whole.get()
        except ModelError:
            raise error from None
        self.preparing.note(f"the whole network on {whole.runtime} is asked what all others fail ({error})")
        return whole

    def ends(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """Inputs and outputs as ONNX Runtime has them; where that refuses the file, as the file has them."""
        try:
            return self.whole.about.inputs, self.whole.about.outputs
        except (ModelError, ProcessorError):
            return self.inputs, self.outputs

    def close(self) -> None:
        """Cancel what goes on behind, and free everything, after the runs that are under way. Idempotent."""
        self._cancel.cancel()  # before locks are waited for, which may be held by what this ends
        with self.ready.lock:
            ready = self.ready.empty()
            self.preparing.end()
            self.whole.close()
        with ExitStack() as ending:
            ending.callback(self.preparing.close)
            for prepared in () if self.preparing.forked else ready:
                ending.callback(prepared.close)

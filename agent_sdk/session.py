"""A network ready to run, as the application has it: under the names that ONNX Runtime's users know."""

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, overload

import onnxruntime as ort

from agent_sdk.binding import IOBinding, host_array, is_numeric, own_value
from agent_sdk.closing import Closes
from agent_sdk.errors import (
    SESSION_CLOSED,
    DeviceClosedError,
    InputError,
    ModelError,
    ProcessorLost,
    UnplannableError,
    refuse_unless_seconds,
)
from agent_sdk.explain import Explanation, explain, explain_whole
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.plans import Feed, Stats, plain_shapes
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.preparing import Preparing
from agent_sdk.journey.rounding import FLOAT32
from agent_sdk.journey.verify import Verdict, relative_error
from agent_sdk.machine.timing import timed
from agent_sdk.model import Shapes
from agent_sdk.model.feeds import feeds_of_ports
from agent_sdk.model.ports import ModelMetadata, NodeArg, bound, node_args
from agent_sdk.pool import Pool
from agent_sdk.scheduling.job import Terms
from agent_sdk.scheduling.jobs import Jobs
from agent_sdk.scheduling.request import Late
from agent_sdk.tensors import as_tensors, with_tensors
from hope_schema import Plan
from hope_schema.hashing import digest

ASYNC_THREADS: Final = 4
"""Runs that ``run_async`` has under way at the same time."""


class Session(Closes, Forks):
    """A network ready to run; made by ``Agent.load``. May be used from any number of threads.

    It can stand where an ``onnxruntime.InferenceSession`` stood: ``run(output_names, feed)`` gives a list, and
    ``run(feed)`` a dictionary.

    Args:
        preparing: makes its plans, which answer; they and what it was loaded from are closed with this.
        jobs: the agent's queue, for runs with a deadline or a priority.
    """

    def __init__(self, preparing: Preparing, jobs: Jobs) -> None:
        self.preparing, self.plans, self._jobs = preparing, preparing.plans, jobs
        self.content, self.reference = self.plans.options.content, preparing.reference
        self.in_child()
        watch_forks(self)

    def in_child(self) -> None:
        """``run_async`` has threads of its own in every process."""
        self._async = Pool(ASYNC_THREADS, thread_name_prefix="hope-async")
        self._called_back = threading.local()

    def __repr__(self) -> str:
        return f"<Session {self.name!r}: {self.plans.said()}; {self.stats.prepared} prepared>"

    @property
    def name(self) -> str:
        return self.plans.name

    # What it takes and gives

    def get_inputs(self) -> list[NodeArg]:
        """What has to be given, as the file has it: symbols stand where any size may come."""
        return node_args(self.plans.ends()[0])

    def get_outputs(self) -> list[NodeArg]:
        """What is computed, in the shapes that ONNX Runtime infers."""
        return node_args(self.plans.ends()[1])

    def get_overridable_initializers(self) -> list[NodeArg]:
        """What may be given as well: initialisers that are inputs too. ONNX Runtime answers where one is."""
        return node_args(self.plans.whole.about.optional)

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself."""
        return self.plans.whole.about.metadata

    def get_session_options(self) -> ort.SessionOptions:
        """The options of ONNX Runtime's own session of this file, which is opened for that; see ``plain``."""
        return self.plain.get_session_options()

    def get_providers(self) -> list[str]:
        """What answered last, or will answer: processors, or the runtime that runs the whole network."""
        return list(self.plans.providers)

    # Running

    @overload
    def run(
        self,
        output_names: Feed,
        /,
        *,
        timeout_s: float | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
        on_late: Late = "late",
    ) -> dict[str, Any]: ...
    @overload
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        run_options: ort.RunOptions | None = None,
        *,
        timeout_s: float | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
        on_late: Late = "late",
    ) -> list[Any]: ...
    def run(
        self,
        output_names: Feed | Sequence[str] | None,
        input_feed: Feed | None = None,
        run_options: ort.RunOptions | None = None,
        *,
        timeout_s: float | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
        on_late: Late = "late",
    ) -> dict[str, Any] | list[Any]:
        """Compute the outputs: by name with ``run(feed)``, as a list with ``run(names or None, feed)``.

        With a deadline or a priority the run waits its turn among the jobs of the agent, as ``Agent.submit`` says;
        without, it begins at once, and stands at the arbiter by the time of its call. A run with ``run_options`` is
        ONNX Runtime's own, which waits for no turn: they may stop it, or change it. ``timeout_s`` bounds runs of a
        plan; a runtime that runs the whole network cannot be stopped. Tensors of torch's are answered with tensors on
        the same device, and stay there where the plan computes there. Raises InputError (FeedError), or what
        ``Executor.run`` raises.
        """
        names, given = None, output_names
        if input_feed is not None:
            names, given = self._names(output_names), input_feed
        if not isinstance(given, (dict, Mapping)):
            raise InputError("run takes a mapping of inputs, or a list of output names and a mapping of inputs")
        queued = deadline_ms is not None or priority is not None or on_late != "late"
        if queued and run_options is not None:
            raise InputError("a run with run_options is ONNX Runtime's own: it has no deadline and no priority")
        feed, device = with_tensors(given)
        if run_options is not None:
            found = self.plans.whole.lend().run(feed, names, run_options)
        elif queued:
            found = self._jobs.run(self.plans, feed, Terms(deadline_ms, priority or 0, on_late, timeout_s))
        else:
            found = self.plans.run(feed, timeout_s=timeout_s)
        if device is not None:
            found = as_tensors(found, device)
        return found if names is None else [found[name] for name in names]

    def _names(self, output_names: object) -> list[str]:
        known = [port.name for port in self.plans.outputs]
        if isinstance(output_names, str) or not isinstance(output_names, Sequence | None):
            raise InputError(f"the names of outputs are to be a list, not {output_names!r}")
        for name in output_names or ():
            if name not in known:
                raise InputError(f"there is no output '{name}'; outputs: {', '.join(known)}")
        return list(output_names or known)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, ort.OrtValue],
        run_options: ort.RunOptions | None = None,
    ) -> list[ort.OrtValue]:
        """Compute the outputs from values of ONNX Runtime's, as such; raises like ``run``.

        It is ONNX Runtime's own run where a value lies on another device, or is no tensor of a type that NumPy has.
        """
        feed = {name: host_array(value) for name, value in input_dict_ort_values.items()}
        if run_options is None and all(array is not None for array in feed.values()):
            made = self.run(output_names, feed)
            if all(map(is_numeric, made)):
                return list(map(own_value, made))
        return list(self.plain.run_with_ort_values(output_names, input_dict_ort_values, run_options))

    def io_binding(self) -> IOBinding:
        """Nothing bound yet, for ``run_with_iobinding``."""
        return IOBinding(self.plans)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: ort.RunOptions | None = None) -> None:
        """Compute the outputs from and into what is bound; raises like ``run``.

        It is ONNX Runtime's own run where something lies on another device, or is no tensor of a type that NumPy has.
        """
        if iobinding.plans is not self.plans:
            raise InputError("a binding is used with the session that made it")
        if run_options is not None or not iobinding.run():
            iobinding.run_on(self.plain, run_options)

    @property
    def plain(self) -> ort.InferenceSession:
        """ONNX Runtime's own session of the file, for what only that does; opened when first needed, and then kept."""
        return self.plans.whole.lend().session

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any = None,
        run_options: ort.RunOptions | None = None,
    ) -> None:
        """Begin a run and return; ``callback(outputs, user_data, error)`` is called from another thread.

        It is called whatever happens, also where the session is closed before the run has begun. What it raises goes to
        ``threading.excepthook``. Raises InputError where an input is missing, or DeviceClosedError.
        """
        self.begin(lambda: self.run(output_names, input_feed, run_options), input_feed, callback, user_data)

    def begin(
        self,
        run: Callable[[], list[Any]],
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
    ) -> None:
        """Have a run begin on a thread of this session's; see ``run_async``."""
        missing = [
            port.name
            for port in self.plans.inputs
            if port.name not in input_feed and not port.type.startswith("optional")
        ]
        if missing:
            raise InputError(
                f"missing inputs: {', '.join(missing)}; given: {', '.join(map(str, input_feed)) or 'none'}"
            )

        def work() -> None:
            try:
                outputs, failure = run(), ""
            except Exception as error:  # noqa: BLE001  the callback is who is told
                outputs, failure = [], str(error) or type(error).__name__
            self._called_back.own = True
            try:
                callback(outputs, user_data, failure)
            finally:
                self._called_back.own = False

        try:
            self._async.begin(work)
        except ProcessorLost as error:
            if not self.plans.closed:
                raise
            raise DeviceClosedError(SESSION_CLOSED) from error

    @overload
    async def arun(self, output_names: Feed, /, *, timeout_s: float | None = None) -> dict[str, Any]: ...
    @overload
    async def arun(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        run_options: ort.RunOptions | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Any]: ...
    async def arun(self, *given: Any, **named: Any) -> dict[str, Any] | list[Any]:
        """Like ``run``, without blocking the event loop."""
        return await asyncio.to_thread(self.run, *given, **named)

    # Plans

    def prepare(self, shapes: Shapes | None = None) -> Prepared:
        """Make a plan ready for these input shapes, unless one is, and return it; see ``Preparing.prepare``."""
        return self.preparing.prepare(None if shapes is None else plain_shapes(shapes))

    @property
    def ready(self) -> bool:
        """Whether it is prepared: its plan is there and tried, or ``notes`` say why none is to come."""
        return self.preparing.begun

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until ``ready``, for so many seconds at most; whether it is. Raises DeviceClosedError."""
        if timeout is not None:
            refuse_unless_seconds("timeout", timeout)
        return self.preparing.wait(timeout if timeout is None or timeout < threading.TIMEOUT_MAX else None)

    # What it says

    @property
    def notes(self) -> list[str]:
        """All that is not as it should be, in sentences; last, what is done behind: ``measuring, 12 of 55 s: Conv``."""
        doing = self.preparing.services.progress.latest
        return [*self._lasting_notes, *([str(doing)] if doing else [])]

    @property
    def _lasting_notes(self) -> tuple[str, ...]:
        last = self.plans.last
        return (*self.plans.notes, *(last.notes if last is not None else ()))

    @property
    def stats(self) -> Stats:
        return self.plans.stats

    def verify(self, inputs: Feed | None = None, *, tolerance: float | None = None, seed: int = 0) -> Verdict:
        """Judge the plan, and who answers instead of it, by plain ONNX Runtime on the network's file as it was given.

        ``inputs`` are drawn at random where none are given; ``tolerance`` is what the network's types round to. Raises
        ModelError where ONNX Runtime cannot load the network, or InputError for a tolerance that is none.
        """
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise InputError(f"tolerance must be a finite number, 0 or more, not {tolerance}")
        feed = self.draw(seed) if inputs is None else inputs
        if (prepared := self.plans.at(feed)) is not None:
            return prepared.judge(feed).verdict({prepared.executor, prepared.plan_executor}, tolerance)
        error = relative_error(self.plans.whole.get().run(feed), self.reference.outputs(feed))
        return Verdict(error, FLOAT32 if tolerance is None else tolerance, "rounding of float32 between runtimes")

    def explain(self, inputs: Feed | None = None, *, runs: int = 5, seed: int = 0) -> Explanation:
        """Say what runs where and why, with a run of the plan beside what was predicted of it.

        ``inputs`` are drawn at random where none are given; of ``runs`` the middle one counts. Raises InputError where
        none can be drawn or for less than one run, or like ``run``.
        """
        if runs < 1:
            raise InputError(f"a run or more is to be timed, not {runs!r}")
        feed = self.draw(seed) if inputs is None else inputs
        if (prepared := self.plans.at(feed)) is not None:
            return explain(prepared, feed, runs=runs, notes=self._lasting_notes)
        times = sorted(timed(partial(self.plans.whole.get().run, feed))[0] for _ in range(runs))
        return explain_whole(self.name, self.plans.whole.get().runtime, times[len(times) // 2], self._lasting_notes)

    def draw(self, seed: int = 0) -> Feed:
        """Random inputs, of the shapes that ran last, else of the file's. Raises InputError where none can be drawn."""
        if self.plans.last is not None:
            return self.plans.last.drawn.feed(seed)
        inputs = bound(self.plans.whole.get().inputs, self.plans.options.shapes or {})
        network = None
        with suppress(ModelError):  # what cannot be read runs as a whole; its inputs are drawn by their types
            network = self.plans.network
        feeds = feeds_of_ports(inputs, network)
        if feeds is None:
            ports = ", ".join(f"{port.name} {list(port.shape)}" for port in inputs if port.is_open)
            shapes = f'shapes of {ports} (--shape INPUT=SIZES; in the file of a mix "shape"), or ' if ports else ""
            raise InputError(f"no inputs can be drawn for '{self.name}': give {shapes}inputs (--input FILE.npz)")
        known = digest([self.content.digest, *((port.name, port.shape) for port in inputs)])
        drawn = self.preparing.services.first_runs.drawn(feeds, self.content, known)
        if drawn is None:
            raise InputError(f"ONNX Runtime takes no inputs that are drawn for '{self.name}': give some")
        return drawn.feed(seed)

    # The plan of the shapes that ran last

    @property
    def latest(self) -> Prepared:
        """What was made ready or has answered last. Raises UnplannableError where the network runs as a whole."""
        if self.plans.last is None:
            why = f": {self.plans.notes[0]}" if self.plans.notes else ""
            raise UnplannableError(f"'{self.name}' has no plan yet{why}")
        return self.plans.last

    @property
    def plan(self) -> Plan | None:
        """Its plan, whoever answers; None until there is one, and where there is no planner."""
        return None if self.plans.last is None else self.plans.last.obtained.plan

    def close(self) -> None:
        """Cancel what goes on behind, and free everything, after the runs that are under way. Idempotent.

        Runs of ``run_async`` that have not begun fail, which their callbacks are told. May be called by a callback.
        """
        self._jobs.leave(self.plans)
        self.preparing.close()
        self._async.shutdown(wait=not getattr(self._called_back, "own", False))
        self.content.close()

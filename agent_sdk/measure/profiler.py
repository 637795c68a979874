"""The benchmarking engine (HOPE section 4.1): op latencies per processor kind and transfer costs per tensor type.

Only what the planner lacks is measured, each signature once per kind of processor, in this order, so that a budget
that runs out leaves the least useful figures absent:

1. whole-network runs under each runtime's own profiler, where it has one, then without, the kinds in turns:
   latencies of fused kernels in the layouts they really use, scaled so that together they give the whole's; and what
   lies between such a run and its caller (``Trace.deliveries``);
2. super-ops alone, for what such a run does not show (an op the runtime fused away, a network it refuses whole);
3. what launches and neighbours cost each kind (``rehearsal.py``), and a segment's launch and end where that tells
   nothing. A hand-over between lanes takes 0.2 to 0.4 µs;
4. transfers: the change of layout on either side plus the move.

A short budget, which whole networks would exceed by being compiled, goes to super-ops alone, in the order in which the
planner asks for them, the most telling first, then to transfers.
"""

import logging
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from agent_sdk.engine import Device
from agent_sdk.engine.single import whole_run
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import (
    CompilationFailed,
    DeviceClosedError,
    ExecutionError,
    InputError,
    OutOfMemory,
    ProcessorError,
    ProcessorLost,
    SegmentFailedError,
    SilentFallback,
    UnsupportedOp,
    WrongOutput,
)
from agent_sdk.machine.columns import latency_columns, transfer_columns
from agent_sdk.machine.timing import NOTHING, Timing, scaled, take_turns, usual
from agent_sdk.machine.witness import Witness, calm
from agent_sdk.measure.launch import ROW_BYTES, ROWS, end_us, launch_us
from agent_sdk.measure.moves import channels, time_move
from agent_sdk.measure.rehearsal import like_the_nearest, rehearse
from agent_sdk.measure.truth import Costs, Sample, fitted, overheads_with
from agent_sdk.model import Model
from agent_sdk.model.feeds import draw
from agent_sdk.model.weights import copies_at_once
from agent_sdk.runtimes.alone import time_executable, time_segment
from agent_sdk.runtimes.base import Processor, segment_of
from agent_sdk.runtimes.host import HostPlace
from hope_schema import (
    HOST,
    Missing,
    Observations,
    Overheads,
    SuperOp,
    TensorType,
    by_recipe,
    merge,
)

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Called with what is measured from now on."""

REFUSALS: Final = (UnsupportedOp, CompilationFailed, SilentFallback, WrongOutput)
"""Failures that say: this op cannot run there. Anything else leaves the figure absent."""
SHORT_S: Final = 10.0
"""A budget below which nothing is measured but single super-ops and transfers."""
WHOLE_SHARE: Final = 0.5
"""Part of the budget that whole-network runs may take, so that something is left for the rest."""
NEIGHBOURS_SHARE: Final = 0.15
"""Part of the budget for what working side by side costs."""
PROFILERS_SHARE: Final = 0.7
"""Part of that which the runtimes' profilers may take; the rest is for timing the networks without them."""
ROUNDS: Final = 9
"""Rounds in which each kind runs the whole network; what it usually takes in those that count is its figure."""


def profile(
    model: Model,
    processors: Sequence[Processor],
    missing: Missing,
    *,
    soc: str,
    frequency: str,
    device_id: str,
    budget_s: float = 60.0,
    progress: Progress | None = None,
) -> Observations:
    """Measure what is missing for ``model`` on ``processors`` within ``budget_s`` seconds.

    Figures that were not reached stay absent; ops a runtime refuses are *unsupported*, explicitly. The calling
    thread is bound to the measured processor's cores meanwhile. The machine should be otherwise quiet.
    """
    run = _Profiling(model, processors, missing, time.monotonic() + budget_s, progress or (lambda _: None))
    overheads = Overheads()
    run.refusals()
    if budget_s < SHORT_S:
        run.single_kernels()
        run.single_super_ops()
        run.transfers()
    else:
        run.whole_networks(time.monotonic() + WHOLE_SHARE * budget_s)
        run.single_super_ops()
        overheads = run.overheads(time.monotonic() + NEIGHBOURS_SHARE * budget_s)
        run.transfers()
    run.recipes()
    return Observations(
        soc=soc,
        frequency=frequency,
        processors=tuple(processor.spec for processor in processors),
        channels=channels(processors),
        latencies=latency_columns(
            run.latencies, [run.by_kind[kind].share(signature) for signature, kind in run.latencies]
        ),
        transfers=transfer_columns(run.moves),
        overheads=overheads,
        device_id=device_id,
        upload_id=f"profile-{uuid.uuid4().hex}",
    )


def untrusted(model: Model, processors: Iterable[Processor]) -> set[tuple[str, str]]:
    """Signatures of super-ops, and the kinds of processors that are not trusted with one of their ops."""
    graph = model.graph
    return {
        (super_op.signature, processor.spec.kind)
        for processor in processors
        if processor.trusted is not None and processor.trusted.refusals(graph.ops, graph)
        for super_op in merge(graph)
        if processor.trusted.refusals(super_op.ops, graph)
    }


@dataclass
class _Profiling:
    """One profiling run: what is asked for, and what was found so far."""

    model: Model
    processors: Sequence[Processor]
    missing: Missing
    deadline: float
    progress: Progress
    latencies: dict[tuple[str, str], Timing | None] = field(default_factory=dict)
    moves: dict[tuple[TensorType, str, str], Timing] = field(default_factory=dict)
    delivered: dict[tuple[TensorType, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.by_kind: dict[str, Processor] = {}
        for processor in self.processors:
            self.by_kind.setdefault(processor.spec.kind, processor)
        self.occurrences: dict[str, list[SuperOp]] = {}
        for super_op in merge(self.model.graph):
            self.occurrences.setdefault(super_op.signature, []).append(super_op)
        self.asked = [
            (row.signature, row.kind)
            for row in self.missing.latencies
            if row.signature in self.occurrences and row.kind in self.by_kind
        ]
        self.by_place = {processor.spec.place: processor for processor in reversed(self.processors)}
        known = {HOST, *self.by_place}
        types = {tensor.type for tensor in self.model.graph.tensors}
        self.asked_moves = [
            (row.tensor, row.source, row.target)
            for row in self.missing.transfers
            if row.tensor in types and row.source in known and row.target in known
        ]
        self.conversions: dict[tuple[str, TensorType, bool], Timing] = {}

    def out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def refusals(self) -> None:
        """Say what no table takes: that costs nothing, and whoever plans without knowing it makes plans in vain."""
        refused = untrusted(self.model, self.by_kind.values())
        self.latencies |= {asked: None for asked in self.asked if asked in refused}
        self.asked = [asked for asked in self.asked if asked not in refused]

    def whole_networks(self, deadline: float) -> None:
        """Ask each kind's runtime which op takes which share of the whole network, then time that on all of them."""
        shares: dict[str, Mapping[str, Timing]] = {}
        kinds = list(dict.fromkeys(kind for _, kind in self.asked))
        for index, kind in enumerate(kinds):
            now = time.monotonic()
            if now >= deadline:
                break
            self.progress(f"the whole network on {self.by_kind[kind].id}")
            share = PROFILERS_SHARE * (deadline - now) / (len(kinds) - index)
            try:
                shares[kind] = self.by_kind[kind].time_ops(self.model, now + share)
            except ProcessorError as error:
                log.info("no whole-network profile on %s: %s", self.by_kind[kind].id, error)
        kinds = [kind for kind, found in shares.items() if found]
        together = copies_at_once(self.model)
        groups = [kinds[start : start + together] for start in range(0, len(kinds), together)]
        if not groups:
            return
        with Witness() as witness:  # one for all groups: what it knows of full speed is the same for all of them
            for index, group in enumerate(groups):
                now = time.monotonic()
                share = (deadline - now) / (len(groups) - index)
                self.progress(f"the whole network in turns on {', '.join(self.by_kind[kind].id for kind in group)}")
                for kind, whole in self._in_turns(group, now + share, witness).items():
                    self._take(kind, scaled(shares[kind], whole.us))

    def _take(self, kind: str, found: Mapping[str, Timing]) -> None:
        """Take in what ops of the network took on a kind, as far as it was asked for."""
        for signature in {signature for signature, own in self.asked if own == kind}:
            samples = [found[op.id] for op in self.occurrences[signature] if op.id in found]
            if samples:
                self.latencies[signature, kind] = _merged(samples)

    def single_kernels(self) -> None:
        for kind in dict.fromkeys(kind for _, kind in self.asked if self.by_kind[kind].times_one_by_one):
            self.progress(f"kernels on {self.by_kind[kind].id}")
            try:
                self._take(kind, self.by_kind[kind].time_ops(self.model, self.deadline))
            except ProcessorError as error:
                log.info("kernels were not timed on %s: %s", self.by_kind[kind].id, error)

    def recipes(self) -> None:
        """Add the further recipes of what was measured."""
        known = [(*key, first) for key, first in self.latencies.items() if first is not None]
        for signature, kind, first in known:
            for recipe, times in self.by_kind[kind].recipes(signature).items():
                found = Timing(first.us * times, first.spread_us * times, first.count)
                self.latencies[by_recipe(signature, recipe), kind] = found

    def _in_turns(self, kinds: Sequence[str], deadline: float, witness: Witness) -> dict[str, Timing]:
        """The latency of the whole network on each of these kinds; says where even the best of it was disturbed."""
        with ExitStack() as opened:
            device = opened.enter_context(Device(()))
            inputs = draw(self.model, 0)
            calls = {}
            for kind in kinds:
                if self.out_of_time():
                    break
                processor = self.by_kind[kind]
                try:
                    run = opened.enter_context(whole_run(self.model, processor, device))
                    calls[kind] = partial(run.traced, inputs)
                except ProcessorError as error:
                    log.info("'%s' does not run as a whole on %s: %s", self.model.name, processor.id, error)
            turns = take_turns(
                calls,
                rounds=ROUNDS,
                share=deadline,
                deadline=self.deadline,
                witness=witness,
                failing=(ProcessorError, SegmentFailedError, DeviceClosedError),
            )
        for kind, failure in turns.failures.items():
            log.warning("not measured on %s: %s", self.by_kind[kind].id, failure)
        if not calm(turns.disturbance):
            log.info(
                "other work, or a core that was not at full speed, disturbed even the calmest rounds of '%s': "
                "processors of several cores may look slower beside the others than they are",
                self.model.name,
            )
        traces = {kind: [turn.result for turn in counted] for kind, counted in turns.counted.items() if counted}
        for tensor, place, us in chain.from_iterable(map(Trace.deliveries, chain.from_iterable(traces.values()))):
            self.delivered[tensor, place, HOST].append(us)
        return {
            kind: usual([sum(span.us for span in trace.segments) for trace in runs]) for kind, runs in traces.items()
        }

    def single_super_ops(self) -> None:
        """Compile and time alone what no whole-network run has shown.

        As a part of a segment, in which a gang's workers are awake: waking them is the segment's launch.
        """
        for signature, kind in self.asked:
            if (signature, kind) in self.latencies:
                continue
            if self.out_of_time():
                return
            processor = self.by_kind[kind]
            self.progress(f"{signature} on {processor.id}")
            segment = replace(segment_of(self.occurrences[signature][0], self.model), lingers=True)
            try:
                self.latencies[signature, kind] = time_segment(processor, segment, self.deadline)
            except REFUSALS as error:
                log.info("unsupported: %s", error)
                self.latencies[signature, kind] = None
            except (OutOfMemory, ProcessorLost) as error:
                log.warning("not measured: %s", error)

    def transfers(self) -> None:
        """Layout change at the source, move, layout change at the target; nothing inside one layout family."""
        for tensor, source, target in self.asked_moves:
            if self.out_of_time():
                return
            self.progress(f"{tensor} from {source} to {target}")
            try:
                delivered = self.delivered.get((tensor, source, target))
                self.moves[tensor, source, target] = (
                    usual(delivered) if delivered else self._transfer(tensor, source, target)
                )
            except ProcessorError as error:
                log.info("transfer not measured: %s", error)

    def _transfer(self, tensor: TensorType, source: str, target: str) -> Timing:
        giver, taker = self.by_place.get(source), self.by_place.get(target)
        if giver and taker and source == target and taker.hands_over_native:
            return NOTHING
        parts = []
        if giver is not None:
            parts.append(self._conversion(giver, tensor, outwards=True))
        if taker is not None:
            parts.append(self._conversion(taker, tensor, outwards=False))
        if giver is None or taker is None or taker.place.memory != giver.place.memory:
            giving, taking = (each.place if each else None for each in (giver, taker))
            parts.append(time_move(tensor, giving, taking, self.deadline))
        return Timing(sum(p.us for p in parts), sum(p.spread_us for p in parts), min(p.count for p in parts))

    def _conversion(self, processor: Processor, tensor: TensorType, *, outwards: bool) -> Timing:
        key = (processor.spec.kind, tensor, outwards and processor.conversion_differs)
        if key not in self.conversions:
            change = processor.conversion(tensor, outwards=outwards)
            if change is None:
                self.conversions[key] = self._crossing(processor, tensor)
            else:
                with closing(change):
                    self.conversions[key] = time_executable(change, self.deadline)
        return self.conversions[key]

    def _crossing(self, processor: Processor, tensor: TensorType) -> Timing:
        """What one way to or from an accelerator costs that copies inside its calls; nothing for cores.

        Half of what a kernel's segment takes on a tensor of as many bytes beyond the kernel, and beyond what a launch
        takes on a small one; at least what the bytes take to be copied here.
        """
        if not isinstance(processor.place, HostPlace) or processor.spec.resources[0].startswith("cpu"):
            return NOTHING
        beyond = launch_us(processor, -(-tensor.bytes // ROW_BYTES), self.deadline)
        beyond -= launch_us(processor, 1, self.deadline)
        copied = time_move(tensor, None, processor.place, self.deadline)
        return Timing(max(copied.us, beyond / 2), copied.spread_us, copied.count)

    def rehearsed(self, deadline: float) -> dict[str, Costs]:
        """What launches and neighbours cost each kind that has any, and how much its ops vary.

        The narrowest first, which have the most neighbours. A kind that there was no time for is slowed as the one of
        its runtime that is nearest in width: on many cores nothing is as far from the truth as that nobody slows it.
        """
        samples: list[Sample] = []
        wanted = sorted(self.by_kind.values(), key=lambda own: own.spec.threads)
        if not self.asked or copies_at_once(self.model) < 2:
            return {}
        with Witness() as witness:
            for processor in wanted:
                if processor.slowdown > 1.0 or time.monotonic() >= deadline:
                    continue
                self.progress(f"{processor.id} beside its neighbours")
                try:
                    samples += rehearse(processor, self.processors, self.model, self.latencies, deadline, witness)
                except (ExecutionError, InputError) as error:
                    log.info("not measured beside its neighbours: %s", error)
        return fitted(samples)

    def overheads(self, deadline: float) -> Overheads:
        """Launches and ends as they are timed alone, with what a rehearsal tells instead where there was one."""
        told = self.rehearsed(deadline)
        self.progress("launches")
        launched = _per_kind(self.by_kind, lambda own: launch_us(own, ROWS * own.spec.threads, self.deadline))
        by_kind = {kind: self.by_kind[kind] for kind in launched}
        ended = _per_kind(by_kind, lambda own: end_us(own, self.model, launched[own.spec.kind], self.deadline))
        late = [own for kind, own in self.by_kind.items() if kind not in told and own.slowdown == 1.0]
        slowdown = {kind: own.slowdown for kind, own in self.by_kind.items() if own.slowdown > 1.0}
        return overheads_with(
            Overheads(
                launch_us=launched,
                end_us=ended,
                slowdown=slowdown | like_the_nearest(late, self.processors, told),
            ),
            told,
        )


def _per_kind(processors: Mapping[str, Processor], cost: Callable[[Processor], float]) -> dict[str, float]:
    found = {}
    for kind, processor in processors.items():
        try:
            found[kind] = cost(processor)
        except ProcessorError as error:
            log.info("a fixed cost was not measured: %s", error)
    return found


def _merged(occurrences: Sequence[Timing]) -> Timing:
    """One figure for a signature that stands several times in a network; as often, it costs what they cost."""
    return Timing(
        us=statistics.fmean(timing.us for timing in occurrences),
        spread_us=statistics.fmean(timing.spread_us for timing in occurrences),
        count=sum(timing.count for timing in occurrences),
    )

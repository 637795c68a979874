"""A torch device as a processor: ``cuda:0``, ``cuda:0/fp16``, ``cuda:0/8sm``, ``cpu``; ``xpu:0``, ``mps`` untested."""

import logging
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import torch
from typing_extensions import override

from agent_sdk.errors import CompilationFailed, OutOfMemory, ProcessorError, ProcessorLost
from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import Timing
from agent_sdk.model import Model
from agent_sdk.model.united import UnitedModel, marked
from agent_sdk.runtimes.alone import bound
from agent_sdk.runtimes.base import Processor, Segment, Timed, whole_network
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.torch.choice import Choice
from agent_sdk.runtimes.torch.clock import rouse
from agent_sdk.runtimes.torch.contention import Work, decoded, fitted, sequence
from agent_sdk.runtimes.torch.driver import CudaGraphs, Driver, Eager
from agent_sdk.runtimes.torch.executable import TorchCall, TorchExecutable
from agent_sdk.runtimes.torch.green import GreenContext
from agent_sdk.runtimes.torch.kernel import Kernel, build, recipes, translated
from agent_sdk.runtimes.torch.place import DevicePlace
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.shares import CHAIN, COPIES, Occupancy, device_us, occupancy
from agent_sdk.runtimes.torch.trusted import TORCH
from hope_schema import Processor as ProcessorSpec
from hope_schema import SuperOp, by_recipe, merge

log = logging.getLogger(__name__)

CONTRACT: Final[Mapping[str, Literal["model", "tf32", "float16"]]] = {
    "fp32": "model",
    "tf32": "tf32",
    "fp16": "float16",
}
"""The contract's names of precisions."""
SLOWDOWN: Final = 1.5
"""By how much ops are taken to slow each other down in the schedule from which the real figure is fitted."""
ROUSING: Final = 4096
"""Rows and columns of what is multiplied to have an idle device run at its full clock."""
AT_ONCE: Final = 4
"""Recordings that a GPU replays at once: most networks leave most of it idle at batch 1, and none runs slower so."""
QUICK: Final = 8
"""Launches in a chain that only tells recipes apart."""
LONGER: Final = 1.5
"""A recipe that takes more than so many times as long as the fastest is no other choice,"""
SMALLER: Final = 0.9
"""nor one whose share is more than this part of the fastest's;"""
CHOICES: Final = 2
"""and so many are told at most, the smallest."""


class TorchProcessor(Processor):
    """Kernels of torch on one device, several at once where the plan says so.

    Buffers are plain tensors in the device's memory, in the graph's own types: processors of one device share them
    whatever precision they compute in. Kernels and weights are kept as long as their model lives.

    Args:
        soc: this machine.
        choice: what the processor's id says.
        free: cores on which nobody else computes; its thread stays there, and may poll for the end of a run.

    Raises:
        ProcessorLost: the device, or what it needs, is not there.
    """

    trusted = TORCH

    def __init__(self, soc: Soc, choice: Choice, free: frozenset[int] = frozenset()) -> None:
        self.device = torch.device(choice.device)
        self.caller_cores = free or frozenset(soc.cores)
        self.has_core = bool(free)
        self._green: GreenContext | None = None
        self._kernels: weakref.WeakKeyDictionary[Model, dict[str, Kernel]] = weakref.WeakKeyDictionary()
        self._recipes: dict[str, dict[int, float]] = {}
        self._occupancies: dict[str, Occupancy] = {}
        try:
            self.device_name = _name(self.device)
            # NOTE: kernels of the matrix units want channels last; the others are as fast or faster without.
            self.precision = Precision(choice.precision, self.device.type == "cuda" and choice.precision != "fp32")
            if choice.multiprocessors is not None:
                self._green = GreenContext(self.device, choice.multiprocessors)
            self.driver: Driver = Eager(self.device)
            if self.device.type == "cuda":
                self.driver = CudaGraphs(self.device, self._green.stream if self._green else None)
                told = torch.cuda.get_device_properties(self.device)
                count = self._green.multiprocessors if self._green else told.multi_processor_count
                self.details = f"{told.name}, {told.total_memory / 2**30:.0f} GiB, {count} multiprocessors"
            torch.zeros(1, device=self.device)
        except ProcessorError:
            raise
        except Exception as error:
            where = f"processor '{choice.id}' cannot be used (`hope-agent devices` lists what this machine has)"
            raise translated(error, where, ProcessorLost) from error
        part = f"-{choice.multiprocessors}sm" if choice.multiprocessors is not None else ""
        on_cores = self.device.type == "cpu"
        place = choice.device if not on_cores else "host/torch"
        self.spec = ProcessorSpec(
            id=choice.id,
            runtime="torch",
            version=torch.__version__,
            threads=len(soc.cores) if on_cores else 1,
            core_class=soc.class_of(frozenset(soc.cores)) if on_cores else f"{self.device_name}{part}",
            resources=tuple(f"cpu{core}" for core in soc.cores) if on_cores else (choice.device.replace(":", ""),),
            place=place,
            precision=CONTRACT[choice.precision],
        )
        self.place = HostPlace(place) if on_cores else DevicePlace(place, self.device)
        self.overlaps = self.joins = self.times_one_by_one = isinstance(self.driver, CudaGraphs)
        self.at_once = AT_ONCE if self.overlaps else 1
        if self.overlaps and self.has_core:
            # NOTE: a core sets them to work and sees when they are done; one that computes has no time for that.
            self.copy_engines = (f"{self.spec.resources[0]}-in", f"{self.spec.resources[0]}-out")

    @override
    def compile(self, segment: Segment) -> TorchExecutable:
        graph, ops = segment.model.graph, set(segment.ops)
        whole = [super_op for super_op in merge(segment.model.graph) if ops.issuperset(op.id for op in super_op.ops)]
        covered = {op.id for super_op in whole for op in super_op.ops}
        place = {op: index for index, op in enumerate(segment.ops)}
        parts = [SuperOp(graph=graph, ops=(graph.op[op],)) for op in segment.ops if op not in covered]
        ordered = sorted([*whole, *parts], key=lambda super_op: place[super_op.id])
        planned = {op: timed.recipe for timed in segment.times for op in timed.ops}
        kernels = [self.kernel(super_op, segment.model, planned.get(super_op.id)) for super_op in ordered]
        if not self.overlaps or all(recipe is None for recipe in planned.values()):
            return TorchExecutable(self, segment, kernels)
        return TorchExecutable(self, segment, kernels, [self.kernel(super_op, segment.model) for super_op in ordered])

    def kernel(self, super_op: SuperOp, model: Model, recipe: int | None = None) -> Kernel:
        """A super-op's kernel by a recipe; by its fastest it is made once per model. Raises like ``compile``."""
        if isinstance(model, UnitedModel):
            place, own = model.source(super_op)
            return self.kernel(own, model.members[place], recipe).renamed(partial(marked, place))
        self.refuse_untrusted(super_op.ops, model.graph)
        if recipe is not None:
            return build(super_op, model, self.precision, self.device, recipe)
        made = self._kernels.setdefault(model, {})
        if super_op.id not in made:
            fastest = next(iter(self._ranked(super_op, model)))
            made[super_op.id] = build(super_op, model, self.precision, self.device, fastest)
        return made[super_op.id]

    def _ranked(self, super_op: SuperOp, model: Model) -> Mapping[int, float]:
        """What its recipes take, microseconds, the fastest first, found once per signature.

        The table's alone where the device cannot tell.
        """
        signature = super_op.signature
        if signature not in self._recipes:
            took: dict[int, float] = {}
            count = recipes(super_op, model, self.precision, self.device) if self.overlaps else 1
            for recipe in range(count) if count > 1 else ():
                try:
                    kernel = build(super_op, model, self.precision, self.device, recipe)
                    took[recipe] = self._occupancy(kernel, (1,), QUICK).us[1]
                except OutOfMemory:
                    raise
                except ProcessorError as error:
                    if recipe == 0:
                        raise
                    log.info("recipe %d left out: %s", recipe, error)
            self._recipes[signature] = dict(sorted(took.items(), key=lambda one: one[1])) or {0: 0.0}
        return self._recipes[signature]

    def _occupancy(self, kernel: Kernel, copies: Sequence[int], chain: int) -> Occupancy:
        assert isinstance(self.driver, CudaGraphs)
        try:
            return occupancy(kernel, self.precision, self.driver, copies, chain)
        except Exception as error:
            raise translated(error, f"{self.id}, op '{kernel.name}'", CompilationFailed) from error

    @override
    def time_ops(self, model: Model, deadline: float) -> Mapping[str, Timing]:
        if not self.overlaps:
            return {}
        super_ops = merge(model.graph)
        fresh = {one.signature: one for one in super_ops if one.signature not in self._occupancies}
        if fresh:
            self._rouse()
        for super_op in fresh.values():
            self._occupy(super_op, model, None, deadline)
        for signature in [one for one in fresh if one in self._occupancies]:  # once every op has its figure
            (_, least), *others = self._ranked(fresh[signature], model).items()
            for recipe in (recipe for recipe, us in others if us <= LONGER * least):
                self._occupy(fresh[signature], model, recipe, deadline)
        known = {one.id: self._occupancies.get(one.signature) for one in super_ops}
        found = {name: Timing(occupied.us[1], 0.0, 1) for name, occupied in known.items() if occupied is not None}
        if len(found) == len(super_ops):
            self.slowdown = self._fitted(model)
        return found

    def _occupy(self, super_op: SuperOp, model: Model, recipe: int | None, deadline: float) -> None:
        """Measure what a super-op takes of the device by a recipe, None for its fastest, if there is time left."""
        if time.monotonic() >= deadline:
            return
        try:
            occupied = self._occupancy(self.kernel(super_op, model, recipe), COPIES, CHAIN)
            self._occupancies[by_recipe(super_op.signature, recipe)] = occupied
        except OutOfMemory:
            raise
        except ProcessorError as error:
            log.info("not timed: %s", error)

    def _rouse(self) -> None:
        """Have the device run at the clock that it has at work.

        NOTE: with all of its multiprocessors: at work in a part of them alone it stays at its idle clock for seconds.
        """
        work = torch.rand(ROUSING, ROUSING, device=self.device)
        stream = torch.cuda.Stream(self.device)

        def once() -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(stream):
                begin.record()
                work.matmul(work)
                end.record()
            end.synchronize()
            return float(begin.elapsed_time(end))

        torch.cuda.synchronize(self.device)
        rouse(once)

    def _fitted(self, model: Model) -> float:
        """The slowdown by which a network's ops side by side take as long as they really do."""
        super_ops = merge(model.graph)
        known = [self._occupancies[super_op.signature] for super_op in super_ops]
        works = [Work(one.inputs, one.outputs, o.us[1], o.share) for one, o in zip(super_ops, known, strict=True)]
        order = sequence(works)
        planned = decoded(works, order, SLOWDOWN)
        one = whole_network(model)
        rows = [Timed(tuple(op.id for op in super_ops[index].ops), *planned[index], works[index].us) for index in order]
        beside = replace(one, ops=tuple(op for row in rows for op in row.ops), times=tuple(rows))
        alone_us, beside_us = (self._device_us(segment) for segment in (one, beside))
        return fitted(works, order, beside_us / alone_us)

    def _device_us(self, segment: Segment) -> float:
        assert isinstance(self.driver, CudaGraphs)
        with closing(self.compile(segment)) as executable:
            call = bound(executable)
            assert isinstance(call, TorchCall)
            return device_us(call.launch, self.driver)

    @override
    def share(self, signature: str) -> float:
        known = self._occupancies.get(signature)
        return known.share if known is not None else 1.0

    @override
    def recipes(self, signature: str) -> Mapping[int, float]:
        first = self._occupancies.get(signature)
        if first is None or not first.us[1]:
            return {}
        known = {one: self._occupancies.get(by_recipe(signature, one)) for one in self._recipes.get(signature, ())}
        found = {one: other for one, other in known.items() if other and other.share <= SMALLER * first.share}
        smallest = sorted(found, key=lambda one: found[one].share)[:CHOICES]
        return {one: found[one].us[1] / first.us[1] for one in smallest}

    @override
    def close(self) -> None:
        self._kernels.clear()
        if self._green is not None:
            self.driver = Eager(self.device)
            self._green.close()


def _name(device: torch.device) -> str:
    """The device's name as a label."""
    named = getattr(getattr(torch, device.type), "get_device_name", None)
    text = named(device) if named is not None else device.type
    return re.sub(r"[^a-z0-9._+]+", "-", text.lower()).strip("-._+") or "unknown"

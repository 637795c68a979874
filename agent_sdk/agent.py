"""The façade: ``Agent().load("model.onnx").run({"input": array})``, and the journey behind it.

A model's journey: ``.onnx`` → graph → figures this SoC lacks → measure those → upload → plan → segments → outputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import onnx
from pydantic import ValidationError

from agent_sdk.device.discovery import discover
from agent_sdk.device.soc import read_soc
from agent_sdk.engine import Device, build_program
from agent_sdk.errors import InputError
from agent_sdk.measure.profiler import profile
from agent_sdk.model import Model, read_model
from agent_sdk.paths import cache_directory, state_directory
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.cache import PlanCache, Settled, Unsent
from agent_sdk.planner.client import TOKEN_VARIABLE, PlannerClient
from agent_sdk.planner.embedded import EMBEDDED_URL, embedded_client
from agent_sdk.planner.identity import device_id, stored_token, versions
from agent_sdk.planner.obtain import Obtained, PlanSupplier
from agent_sdk.progress import ProgressListener, Silence
from agent_sdk.session import Session
from hope_schema import DeviceReport, Job, MeasuredRun, Missing, Observations, Plan, PlanReply, PlanRequest
from hope_schema.hashing import digest
from hope_schema.plan import Method

PROFILING_BUDGET_S: Final = 55.0
"""Longest time one ``load`` spends measuring; what it did not reach the planner estimates, and asks for again."""

Source = str | os.PathLike[str] | bytes | onnx.ModelProto
"""A model: a file's path, the name of a zoo network, an ONNX file's bytes, or a proto."""


class Agent:
    """One device's agent: its processors, its threads, and its planner.

    Use as ``with Agent() as agent: session = agent.load("model.onnx")``. Sessions share the agent's processors, and
    may run at the same time from any number of threads.

    Args:
        planner: the planner's URL; None runs one inside this process, on a SQLite file in the cache directory.
        token: bearer token for the planner; by default ``HOPE_TOKEN``, else the one kept from enrolling.
        soc: the SoC that figures belong to; read from this machine by default.
        frequency: the operating point; read from this machine by default.
        processors: comma-separated ids or runtimes to plan with (``"ort@0,ort@1"``); everything by default.
        precision: what torch computes float32 in (``fp32``, ``tf32``, ``fp16``) unless an id says it.
        method: how the planner plans: ``auto``, ``ilp`` or ``greedy``.
        wait_s: seconds the planner may hold a plan back to improve it; None takes what it has at once.
        cache: where plans, the embedded planner's database and this device's id are kept.
        progress: hears about phases and steps.

    Raises:
        UnknownNameError: this device has no such processor.
        InputError: the planner's address, the SoC or the frequency is not one.
    """

    def __init__(
        self,
        planner: str | None = None,
        *,
        token: str | None = None,
        soc: str | None = None,
        frequency: str | None = None,
        processors: str | None = None,
        precision: str = "fp32",
        method: Method = "auto",
        wait_s: float | None = None,
        cache: Path | None = None,
        progress: ProgressListener | None = None,
    ) -> None:
        here = read_soc()
        self.soc = replace(here, name=soc or here.name, frequency=frequency or here.frequency)
        self.method: Method = method
        self._wait_s = wait_s
        self._embedded = planner is None
        self.progress = progress or Silence()
        given = cache is not None
        cache = cache or cache_directory()
        state = cache if given else state_directory()
        self._device_id = device_id(state)
        opening: Callable[[], AbstractAsyncContextManager[PlannerClient]]
        if planner is None:
            opening = lambda: embedded_client(cache / "planner.sqlite")  # noqa: E731
        else:
            token = token or os.environ.get(TOKEN_VARIABLE) or stored_token(state, planner)
            PlannerClient(planner, token=token)
            opening = lambda: PlannerClient(planner, token=token)  # noqa: E731
        address = planner or EMBEDDED_URL
        self._supplier = PlanSupplier(
            lambda: BlockingPlanner(opening()),
            address,
            PlanCache(cache / "plans"),
            Unsent(cache / "unsent" / digest(address)[:32]),
            self._device_id,
        )
        self.device = Device(discover(processors, soc=self.soc, precision=precision))
        self._request("0" * 64)

    def load(self, source: Source, *, seed: int = 0, all_rivals: bool = False) -> Session:
        """Read a model, obtain its plan (measuring first what the planner lacks), and make it ready to run.

        Args:
            source: the model.
            seed: chooses the weights of a zoo network.
            all_rivals: keep the whole model ready on every single processor, for comparing.

        Raises ModelError, UnknownNameError, PlannerStatusError, PlanMismatchError or ProcessorError.
        """
        self.progress.phase(f"reading {_shown(source)}")
        model = read_model(source, seed=seed)
        return Session(self, model, self.obtain(model), all_rivals=all_rivals)

    def obtain(self, model: Model, *, renew: bool = False) -> Obtained:
        """Obtain the plan of a model; ``renew`` asks anew although one is cached.

        Raises PlannerStatusError, PlanMismatchError, or DeviceClosedError once the agent is closed.
        """
        self.progress.phase("asking the planner")
        specs = tuple(processor.spec for processor in self.device.processors.values())

        def measure(missing: Missing) -> Observations:
            total = len(missing.latencies) + len(missing.transfers)
            self.progress.phase("profiling this device", total)
            observations = profile(
                model,
                tuple(self.device.processors.values()),
                missing,
                soc=self.soc.name,
                frequency=self.soc.frequency,
                device_id=self._device_id,
                budget_s=PROFILING_BUDGET_S,
                progress=lambda done, _total, what: self.progress.step(done, what),
            )
            self.progress.phase("asking the planner for a plan")
            return observations

        def check(plan: Plan) -> None:
            build_program(plan, model, self.device.processors)

        request = self._request(model.graph.model_hash)
        return self._supplier.obtain(model.graph, specs, request, measure, check, wait_s=self._wait_s, renew=renew)

    def upload(self, observations: Observations) -> str | None:
        """Send times measured while executing; returns what went wrong, if anything."""
        return self._supplier.upload(observations)

    def report(self, plan: PlanReply, measured_us: float, runs: int) -> str | None:
        """Tell a remote planner how long a plan really takes here; returns what went wrong, if anything."""
        if self._embedded:
            return None
        run = MeasuredRun(plan_id=plan.plan_id, plan_version=plan.version, measured_us=measured_us, runs=runs)
        return self._supplier.report(
            DeviceReport(
                soc=self.soc.name,
                frequency=self.soc.frequency,
                versions=versions(),
                sent_at=datetime.now(UTC),
                measured=(run,),
            )
        )

    def settle(self, obtained: Obtained, settled: Settled) -> None:
        """Keep what was found out about a plan for the next start."""
        self._supplier.settle(obtained, settled)

    @property
    def device_id(self) -> str:
        """The id of this device in uploads."""
        return self._device_id

    def _request(self, model_hash: str) -> PlanRequest:
        try:
            return PlanRequest(
                jobs=(Job(model_hash=model_hash),),
                soc=self.soc.name,
                frequency=self.soc.frequency,
                processors=tuple(self.device.processors),
                method=self.method,
            )
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InputError(f"{first['loc'][0]} {first['input']!r}: {first['msg']}") from error

    def close(self) -> None:
        """End the threads, close every session and the connection to the planner, for good. Idempotent."""
        try:
            self.device.close()
        finally:
            self._supplier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shown(source: Source) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the model"

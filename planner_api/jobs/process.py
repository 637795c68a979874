"""One killable solver process, kept warm between tasks: importing numba and HiGHS costs more than most solves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from hope_schema import ModelGraph, Plan, PlanRequest, Profile
from planner_api.jobs.child import Child
from planner_api.jobs.solver import ENTRY, Answer, Task

START_TIMEOUT_S = 180.0
"""Longest start of a child: the first one after an installation compiles the numba kernels, later ones load them."""


class SolveError(Exception):
    """A solve ended without a plan.

    ``permanent`` says that trying again cannot help (the problem itself is refused); otherwise the child was
    killed or died, which another attempt may survive.
    """

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


@dataclass(frozen=True)
class Solved:
    """A plan and how long its solve took, in microseconds."""

    plan: Plan
    solve_us: float


class SolverProcess(Child):
    """Runs one solve at a time in a child process under a time and a memory limit.

    The child is killed when a solve outlives its time limit, and is started anew by the next solve. A worker holds one
    per slot.

    Args:
        timeout_s: wall-clock limit of one solve; the budget given to the solver should lie below it.
        memory_bytes: address space a solve may add to what the libraries hold (0: no limit).
        entry: what the child runs.
    """

    def __init__(self, *, timeout_s: float, memory_bytes: int, entry: str = ENTRY) -> None:
        module = "planner_api.jobs.solver"
        super().__init__(module, entry, memory_bytes=memory_bytes, start_s=START_TIMEOUT_S, arenas=2)
        self._timeout_s = timeout_s

    async def solve(
        self, graphs: tuple[ModelGraph, ...], profile: Profile, request: PlanRequest, *, budget_s: float
    ) -> Solved:
        """Solve one plan, of a graph per job, in the child.

        Raises:
            SolveError: refused by the planner (permanent), or timed out, out of memory or crashed.
        """
        try:
            await self.start()
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            raise SolveError("the solver process does not start; see the worker's log", permanent=False) from error
        request_json, profile_json, *bodies = (
            message.model_dump_json().encode() for message in (request, profile, *graphs)
        )
        task = Task(request_json, profile_json, tuple(bodies), budget_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = msgspec.msgpack.decode(await self.ask(msgspec.msgpack.encode(task)), type=Answer)
        except TimeoutError as error:
            await self.kill()
            raise SolveError(f"killed after its time limit of {self._timeout_s:g} s", permanent=False) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.kill()
            raise SolveError(f"the solver process died (exit status {code})", permanent=False) from error
        except BaseException:
            await self.kill()  # cancelled half-way
            raise
        if answer.out_of_memory:
            await self.kill()  # a heap that hit its limit is not trusted with the next task
        if answer.error:
            raise SolveError(answer.error, permanent=answer.permanent)
        return Solved(Plan.model_validate_json(answer.plan), answer.solve_us)

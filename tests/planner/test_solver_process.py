"""The killable child: limits hold, it dies with its parent, and a failure never reaches the next solve."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import psutil
import pytest

from planner_api.jobs.process import SolveError, SolverProcess
from tests.planner.solving_help import GRAPH, PROFILE, REQUEST

MEBIBYTE = 2**20


def run(entry: str, scenario: Callable[[SolverProcess], Awaitable[None]], *, timeout_s: float = 20.0) -> None:
    """Run a scenario with a child of the given entry."""

    async def main() -> None:
        solver = SolverProcess(timeout_s=timeout_s, memory_bytes=512 * MEBIBYTE, entry=f"tests.planner.entries:{entry}")
        try:
            await scenario(solver)
        finally:
            await solver.kill()

    asyncio.run(main())


async def solve(solver: SolverProcess) -> float:
    """Solve the small problem and return its makespan."""
    return (await solver.solve((GRAPH,), PROFILE, REQUEST, budget_s=1.0)).plan.makespan_us


@pytest.mark.parametrize("entry", ["honest", "noisy"])
def test_one_warm_child_serves_many_solves(entry: str) -> None:
    """The start-up cost is paid once, and what libraries print does not mix with the answers."""

    async def scenario(solver: SolverProcess) -> None:
        assert await solve(solver) == len(GRAPH.ops)
        first = solver.pid
        assert await solve(solver) == len(GRAPH.ops)
        assert solver.pid == first

    run(entry, scenario)


def test_an_endless_solve_is_killed_and_the_next_one_gets_a_new_child() -> None:
    """The time limit ends a solve that ignores SIGTERM."""

    async def scenario(solver: SolverProcess) -> None:
        await solver.start()
        pid = solver.pid
        assert pid is not None
        with pytest.raises(SolveError, match="time limit") as caught:
            await solve(solver)
        assert not caught.value.permanent
        assert not psutil.pid_exists(pid)
        await solver.start()
        assert solver.pid not in (None, pid)

    run("endless", scenario, timeout_s=0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="the address-space limit is set on Linux only")
def test_a_hungry_solve_runs_into_its_memory_limit() -> None:
    """Memory is bounded, and the cause is told."""

    async def scenario(solver: SolverProcess) -> None:
        with pytest.raises(SolveError, match="memory"):
            await solve(solver)

    run("hungry", scenario)


def test_a_child_that_dies_is_reported_and_replaced() -> None:
    """A crash in C code is an ordinary failure of this solve alone."""

    async def scenario(solver: SolverProcess) -> None:
        for _ in range(2):
            with pytest.raises(SolveError, match="died") as caught:
                await solve(solver)
            assert not caught.value.permanent

    run("suicidal", scenario)


@pytest.mark.parametrize(
    ("entry", "permanent", "message"), [("refusing", True, "conv_1"), ("faulty", False, "ZeroDivisionError")]
)
def test_errors_carry_their_cause(entry: str, permanent: bool, message: str) -> None:
    """A refused problem is permanent; a bug is not; both say what happened, and the child lives on."""

    async def scenario(solver: SolverProcess) -> None:
        with pytest.raises(SolveError, match=message) as caught:
            await solve(solver)
        assert caught.value.permanent is permanent
        assert solver.pid is not None

    run(entry, scenario)


def test_a_cancelled_solve_leaves_no_answer_behind() -> None:
    """Cancelling half-way kills the child, so that its late answer is not taken for the next one's."""

    async def scenario(solver: SolverProcess) -> None:
        await solver.start()
        task = asyncio.create_task(solve(solver))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert solver.pid is None

    run("slow", scenario)


PARENT = """
import asyncio, sys
from planner_api.jobs.process import SolverProcess
from tests.planner.solving_help import GRAPH, PROFILE, REQUEST

async def main():
    solver = SolverProcess(timeout_s=60, memory_bytes=0, entry="tests.planner.entries:endless")
    await solver.start()
    print(solver.pid, flush=True)
    await solver.solve((GRAPH,), PROFILE, REQUEST, budget_s=60)

asyncio.run(main())
"""


def test_a_busy_child_dies_with_its_parent() -> None:
    """``kill -9`` of the worker leaves no solver behind."""

    async def main() -> None:
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        await asyncio.sleep(0.2)
        parent.kill()
        await parent.wait()
        deadline = time.monotonic() + 10
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the solver outlived its parent"
            await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_warm_child_has_every_kernel() -> None:
    """A child that says it is ready has loaded the search's largest kernel: no task's clock pays for compiling it."""
    script = (
        "from planner_api.jobs import solver\n"
        "solver._warm('planner_api.jobs.solver:solve')\n"
        "from planner_api.planning.search.annealing import anneal\n"
        "assert anneal.signatures\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_child_that_is_ready_has_loaded_what_it_plans_with() -> None:
    """The child of production, as a worker starts it, has the compiler's and the solver's libraries once it is up."""

    async def main() -> None:
        solver = SolverProcess(timeout_s=60, memory_bytes=0)
        try:
            await solver.start()
            loaded = " ".join(region.path for region in psutil.Process(solver.pid).memory_maps())
            assert "llvmlite" in loaded
            assert "highspy" in loaded
        finally:
            await solver.kill()

    asyncio.run(main())

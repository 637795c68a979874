"""The killable child: limits hold, it dies with its parent, and a failure never reaches the next job."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import psutil
import pytest

from planner_api.jobs.kind import JobError
from planner_api.jobs.process import JobProcess
from planner_api.runtime import WARM

MEBIBYTE = 2**20


Scenario = Callable[[JobProcess, Callable[[], Awaitable[bytes]]], Awaitable[None]]


async def twice(question: bytes) -> bytes:
    """What the parent answers."""
    return question * 2


def run(entry: str, scenario: Scenario, *, timeout_s: float = 20.0) -> None:
    """Run a scenario with a child, and with a function that has it do a job of the given entry."""

    async def main() -> None:
        child = JobProcess(memory_bytes=512 * MEBIBYTE)
        try:
            await scenario(child, lambda: child.run(f"tests.planner.entries:{entry}", b"job", twice, timeout_s, bytes))
        finally:
            await child.kill()

    asyncio.run(main())


@pytest.mark.parametrize("entry", ["honest", "noisy", "curious"])
def test_one_warm_child_serves_many_solves(entry: str) -> None:
    """The start-up cost is paid once, and what libraries print does not mix with the answers."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        assert await do() == b"job"
        first = child.pid
        assert await do() == b"job"
        assert child.pid == first

    run(entry, scenario)


def test_a_child_that_rests_answers_once_it_goes_on() -> None:
    """It keeps its job, and computes nothing of it meanwhile."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        await child.start()
        child.rest(True)
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.001)
        job = asyncio.ensure_future(do())
        await asyncio.wait({job}, timeout=0.05)
        assert not job.done()
        child.rest(False)
        assert await job == b"job"

    run("honest", scenario)


def test_what_a_child_rests_is_no_part_of_its_time_limit() -> None:
    """A job that was made to stand still for longer than it may take is not killed for it; one that hangs is."""

    async def scenario(child: JobProcess, _do: Callable[[], Awaitable[bytes]]) -> None:
        loop, passed_s = asyncio.get_running_loop(), [0.0]
        loop.time = lambda: time.monotonic() + passed_s[0]  # type: ignore[method-assign]

        async def slowly(question: bytes) -> bytes:
            for resting in (True, False):
                child.rest(resting)
                passed_s[0] += 1000.0 if resting else 0.0
                await asyncio.sleep(0.001)
            return question * 2

        assert await child.run("tests.planner.entries:curious", b"job", slowly, 500.0, bytes) == b"job"

        async def never(_question: bytes) -> bytes:
            child.rest(True)
            child.rest(False)
            passed_s[0] += 1000.0
            await asyncio.Event().wait()
            raise AssertionError

        with pytest.raises(JobError, match="time limit"):
            await child.run("tests.planner.entries:curious", b"job", never, 500.0, bytes)

    run("honest", scenario)


def test_an_endless_solve_is_killed_and_the_next_one_gets_a_new_child() -> None:
    """The time limit ends a solve that ignores SIGTERM."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        await child.start()
        pid = child.pid
        assert pid is not None
        with pytest.raises(JobError, match="time limit") as caught:
            await do()
        assert not caught.value.permanent
        assert not psutil.pid_exists(pid)
        await child.start()
        assert child.pid not in (None, pid)

    run("endless", scenario, timeout_s=0.5)


def test_a_job_leaves_the_next_one_all_its_memory() -> None:
    """What a job has left in cycles is given back before another one begins."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        for _ in range(4):
            assert await do() == b"job"

    run("knotted", scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="the address-space limit is set on Linux only")
def test_a_hungry_solve_runs_into_its_memory_limit() -> None:
    """Memory is bounded, and the cause is told."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        with pytest.raises(JobError, match="memory"):
            await do()

    run("hungry", scenario)


def test_a_child_that_dies_is_reported_and_replaced() -> None:
    """A crash in C code is an ordinary failure of this solve alone."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        for _ in range(2):
            with pytest.raises(JobError, match="died") as caught:
                await do()
            assert not caught.value.permanent

    run("suicidal", scenario)


@pytest.mark.parametrize(
    ("entry", "permanent", "message"), [("refusing", True, "conv_1"), ("faulty", False, "ZeroDivisionError")]
)
def test_errors_carry_their_cause(entry: str, permanent: bool, message: str) -> None:
    """A refused problem is permanent; a bug is not; both say what happened, and the child lives on."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        with pytest.raises(JobError, match=message) as caught:
            await do()
        assert caught.value.permanent is permanent
        assert child.pid is not None

    run(entry, scenario)


def test_a_cancelled_solve_leaves_no_answer_behind() -> None:
    """Cancelling half-way kills the child, so that its late answer is not taken for the next one's."""

    async def scenario(child: JobProcess, do: Callable[[], Awaitable[bytes]]) -> None:
        await child.start()
        task = asyncio.ensure_future(do())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert child.pid is None

    run("endless", scenario)


PARENT = """
import asyncio
from planner_api.jobs.process import JobProcess

async def main():
    child = JobProcess(memory_bytes=0)
    await child.start()
    print(child.pid, flush=True)
    await child.run("tests.planner.entries:endless", b"", None, 60.0, bytes)

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
        deadline = time.monotonic() + 60
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the solver outlived its parent"
            await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_child_that_is_ready_has_loaded_what_it_plans_with() -> None:
    """The child of production, as a worker starts it, has the search's and the solver's libraries once it is up."""

    async def main() -> None:
        child = JobProcess(memory_bytes=0, warm=WARM)
        try:
            await child.start()
            loaded = " ".join(region.path for region in psutil.Process(child.pid).memory_maps())
            assert "planning/native/kernels" in loaded
            assert "highspy" in loaded
        finally:
            await child.kill()

    asyncio.run(main())

"""One killable solver process, kept warm between tasks: importing numba and HiGHS costs more than most solves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
from dataclasses import dataclass

from hope_schema import ModelGraph, Plan, PlanRequest, Profile
from planner_api.solving.child import MAX_FRAME

ENTRY = "planner_api.solving.child:solve"
"""The function a child runs (``module:function``); tests name hostile ones."""

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


class SolverProcess:
    """Runs one solve at a time in a child process under a time and a memory limit.

    The child dies with this process (PDEATHSIG, closed stdin), is killed when a solve outlives its time limit, and is
    started anew by the next solve. Not for concurrent use: a worker holds one per slot.

    Args:
        timeout_s: wall-clock limit of one solve; the budget given to the solver should lie below it.
        memory_bytes: address space a solve may add to what the libraries hold (0: no limit). Linux only.
        entry: what the child runs.
    """

    def __init__(self, *, timeout_s: float, memory_bytes: int, entry: str = ENTRY) -> None:
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._entry = entry
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or ``None`` while none runs."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def warm(self) -> None:
        """Start the child unless one is running, and wait until it has loaded its libraries.

        Raises:
            SolveError: it does not come up.
        """
        if self.pid is not None:
            return
        # glibc reserves 64 MiB of address space per malloc arena, which the memory limit would count.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "planner_api.solving.child",
            self._entry,
            str(os.getpid()),
            str(self._memory_bytes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._read_frame()
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            await self.kill()
            raise SolveError("the solver process does not start; see the worker's log", permanent=False) from error
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def solve(
        self,
        graphs: tuple[ModelGraph, ...],
        profile: Profile,
        request: PlanRequest,
        *,
        budget_s: float,
        seed: int = 0,
    ) -> Solved:
        """Solve one plan, of a graph per job, in the child.

        Raises:
            SolveError: refused by the planner (permanent), or timed out, out of memory or crashed.
        """
        await self.warm()
        task = {"request": request.model_dump_json(), "graphs": len(graphs), "budget_s": budget_s, "seed": seed}
        header = json.dumps(task).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                bodies = (profile, *graphs)
                await self._write_frames(header, *(body.model_dump_json().encode() for body in bodies))
                reply = json.loads(await self._read_frame())
                body = await self._read_frame()
        except TimeoutError as error:
            await self.kill()
            raise SolveError(f"killed after its time limit of {self._timeout_s:g} s", permanent=False) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.kill()
            raise SolveError(f"the solver process died (exit status {code})", permanent=False) from error
        except BaseException:
            await self.kill()  # cancelled half-way: its next answer would belong to this task
            raise
        if reply["ok"]:
            return Solved(Plan.model_validate_json(body), float(reply["solve_us"]))
        if reply.get("memory"):
            await self.kill()  # a heap that hit its limit is not trusted with the next task
        raise SolveError(reply["error"], permanent=bool(reply.get("permanent")))

    async def kill(self) -> int | None:
        """Kill the child, if any, and return its exit status."""
        child, self._child = self._child, None
        if child is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        if child.stdin is not None:
            child.stdin.close()
        return await child.wait()

    async def _write_frames(self, *bodies: bytes) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        for body in bodies:
            self._child.stdin.write(struct.pack(">I", len(body)) + body)
        await self._child.stdin.drain()

    async def _read_frame(self) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        (length,) = struct.unpack(">I", await self._child.stdout.readexactly(4))
        if length > MAX_FRAME:
            raise asyncio.IncompleteReadError(b"", length)
        return await self._child.stdout.readexactly(length)

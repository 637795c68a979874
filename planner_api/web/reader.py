"""Reading large bodies in a process of their own, which is killed when one takes too long or too much memory.

Whatever Python does with a body of megabytes holds up the event loop, in a thread too: objects are made under one
lock. The child gets the bytes as they came and answers with what the route's reading made of them, or the refusal.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar, get_type_hints

import msgspec
import structlog
from cachetools import LRUCache

from planner_api.concurrency import Turns
from planner_api.errors import UnavailableError
from planner_api.jobs.kind import JobError
from planner_api.jobs.process import JobProcess
from planner_api.web.body import Reading
from planner_api.web.child import BodyToRead, refusal
from planner_api.web.errors import HttpError
from planner_api.web.inflate import Body, inflate, refuse_declared

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

PATIENCE = 6
"""How many times its processor time reading a body may take on the clock, before the machine counts as too busy."""
COSTLY_S = 0.25
"""What took so long to read is remembered ..."""
REMEMBERED_BYTES = 32 * 2**20
"""... in so many bytes together."""
WAITING = 8
"""Large bodies of one sender that may wait to be read."""


class Reader(JobProcess):
    """One child for one body at a time; senders take turns. A body is in memory while it is read, and no longer.

    What took long is not read again: whoever sends the same once more gets the same answer from memory.

    Args:
        limit: most bytes of an inflated body.
        timeout_s: processor time after which the child is killed, for nobody is to blame for what else runs; 0 reads in
            a thread of this process, for who trusts its only sender.
        memory_bytes: address space that a body may add.
        refused: counts refusals, by the quota's name.
        warm: a module that imports the readings; the child loads it before its memory is limited.
    """

    def __init__(
        self, *, limit: int, timeout_s: float, memory_bytes: int, refused: Counter[str], warm: str = ""
    ) -> None:
        super().__init__(memory_bytes=memory_bytes, warm=warm)
        self._limit = limit
        self._timeout_s = timeout_s
        self._answers: LRUCache[tuple[str, str, bytes], bytes] = LRUCache(REMEMBERED_BYTES, getsizeof=len)
        self.turns = Turns("bodies_to_read", slots=1, each=1, waiting=WAITING, refused=refused)

    async def read(self, owner: str, reading: Reading[Result], take: Callable[[], Body]) -> Result:
        """Return what ``reading``, which returns a ``msgspec.Struct``, makes of the inflated body of ``take``.

        Raises:
            HttpError: what ``reading`` or ``inflate`` raise; 413 for a body that takes too long or too much memory.
            UnavailableError: the machine has no time for it.
        """
        if not self._timeout_s:
            return await asyncio.to_thread(lambda: reading(inflate(take(), limit=self._limit)))
        name = f"{reading.__module__}:{reading.__qualname__}"
        async with self.turns.turn(owner):
            body = take()
            refuse_declared(body, self._limit)
            task = BodyToRead(name, body, self._limit, self._timeout_s)
            answer = await self._once(task)
        if not answer[0]:
            status, kind, detail, causes = msgspec.msgpack.decode(answer[1:])
            raise HttpError(status, kind, detail, causes=causes)
        result: Result = msgspec.msgpack.decode(answer[1:], type=get_type_hints(reading)["return"])
        return result

    async def _once(self, task: BodyToRead) -> bytes:
        """Answer from memory, where that took long before."""
        key, began = (task.reading, task.body.encoding, hashlib.sha256(task.body.raw).digest()), time.monotonic()
        if (known := self._answers.get(key)) is not None:
            return known
        answer = await self._answer(task)
        if time.monotonic() - began >= COSTLY_S and len(answer) <= REMEMBERED_BYTES // 8:
            self._answers[key] = answer
        return answer

    async def _answer(self, task: BodyToRead) -> bytes:
        try:
            return await self.run("planner_api.web.child:answer_to", task, None, PATIENCE * self._timeout_s, bytes)
        except JobError as error:
            if error.late:
                detail = "the planner is too busy to read a large body; try again"
                raise UnavailableError(detail, retry_after_s=10) from None
            log.warning("body_not_read", cause=str(error)[:500])  # the sender is told less: it may be a fault of ours
        detail = f"the body takes more than {self._timeout_s:g} s or too much memory to read"
        return refusal(HttpError(413, "body-too-costly", detail))

"""What a kind of job is: which data a child works on, and what becomes of its answer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from planner_api.db.engine import Database, WriteSession
from planner_api.settings import Settings


@dataclass(frozen=True)
class Lease:
    """The right to do one job until it expires or is taken by a newer attempt, which fences this one off."""

    id: int
    attempt: int
    kind: str
    key: str
    failures: int = 0
    priority: int = 0
    asked_by: str | None = None


class JobError(Exception):
    """A job ended without a result.

    ``permanent``: trying again cannot help, for the job itself is refused. ``late``: it had no time, which may be no
    fault of its own.
    """

    def __init__(self, reason: str, *, permanent: bool, late: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent
        self.late = late


class BehindError(Exception):
    """A job cannot begin before another one, by kind and key, has ended."""

    def __init__(self, job: tuple[str, str]) -> None:
        super().__init__(job)
        self.job = job


@dataclass(frozen=True)
class Task:
    """What a child gets; one that takes longer than ``timeout_s`` is killed."""

    order: Any
    timeout_s: float = 60.0


class Kind(ABC):
    """One kind of job. The composition root tells the worker which there are.

    ``function`` names what runs in the child, as ``module:function``: ``(order, ask)``, which ``answers`` with a type
    that msgspec knows as its order's. While it runs it may ``ask`` its parent for facts, as bytes. It raises
    ``RefusedError`` for a job that no other try can save.
    """

    name: ClassVar[str]
    function: str
    answers: ClassVar[Any] = bytes

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    @abstractmethod
    async def load(self, lease: Lease) -> Task | None:
        """Return the task; None: there is nothing to do.

        Raises:
            JobError: what it takes is gone.
            BehindError: it has to wait for another job.
        """

    async def prepare(self, lease: Lease, task: Task, answer: Any) -> Any:
        """Make of an answer what is stored, before the transaction, which must not wait for a thread."""
        return answer

    @abstractmethod
    async def store(self, session: WriteSession, lease: Lease, task: Task, prepared: Any) -> bool:
        """Store the result in the transaction that ends the job; return whether it has to be done once more."""

    @abstractmethod
    async def failed(
        self, session: WriteSession, lease: Lease, task: Task | None, error: str, *, permanent: bool
    ) -> None:
        """Store, in the transaction that ends the job, that it failed, so that no other try follows by itself.

        ``task`` is that of the last try, if it is known; with ``permanent`` the job was refused (see ``JobError``).
        """

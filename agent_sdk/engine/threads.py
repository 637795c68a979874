"""The threads that walk lanes: bound to their cores once, resting outside the interpreter between runs."""

import contextlib
import ctypes
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from agent_sdk.engine.arbiter import CLOSED
from agent_sdk.errors import DeviceClosedError, ProcessorLost
from agent_sdk.machine.cores import bind_to


class LaneThread:
    """A thread that rests until it is called for a lane.

    Attributes:
        name: the resource that leads the lanes it walks.
        left: called in it when it comes back from a lane that was left behind in a runtime that hung.

    Raises ProcessorLost where this process may start no more threads.
    """

    left: Callable[[], None]

    def __init__(self, name: str, cores: frozenset[int], library: ctypes.CDLL) -> None:
        self.name = name
        self._library = library
        self._cores = cores
        self.rest: int = library.hope_make_rest()
        if not self.rest:
            raise MemoryError(f"no memory for the thread of {name}")
        weakref.finalize(self, library.hope_free, self.rest).atexit = False
        self._thread = threading.Thread(target=self._serve, name=f"hope-{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ProcessorLost(f"no thread could be started for {name}: {error}") from error

    def end(self, timeout_s: float) -> bool:
        """End it after the lane it walks; False when that did not happen in time."""
        self._library.hope_call(self.rest)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        # Where that fails, a core is gone; the runs that need it say so when they bind themselves.
        with contextlib.suppress(ProcessorLost):
            bind_to(self._cores)
        while self._library.hope_rest(self.rest):
            # In a frame of its own: a reference kept while it rests would keep a closed session's memory alive.
            self._come_back()

    def _come_back(self) -> None:
        left = self.left
        del self.left
        left()


class LaneThreads:
    """The threads of a device: as many per leading resource as runs have walked at once.

    Args:
        cores: leading resource to the CPUs that its threads are bound to; absent: they stay where they are.
    """

    def __init__(self, cores: dict[str, frozenset[int]], library: ctypes.CDLL) -> None:
        self._cores = cores
        self._library = library
        self._lock = threading.Lock()
        self._idle: defaultdict[str, list[LaneThread]] = defaultdict(list)
        self._out: set[LaneThread] = set()
        self._closed = False

    def take(self, names: Sequence[str]) -> list[LaneThread]:
        """Threads for lanes led by these resources. Raises DeviceClosedError, or ProcessorLost: none was taken."""
        taken: list[LaneThread] = []
        try:
            for name in names:
                taken.append(self._take(name))
        except BaseException:
            self.give_back(taken)
            raise
        return taken

    def _take(self, name: str) -> LaneThread:
        with self._lock:
            if self._closed:
                raise DeviceClosedError(CLOSED)
            idle = self._idle[name]
            thread = idle.pop() if idle else LaneThread(name, self._cores.get(name, frozenset()), self._library)
            self._out.add(thread)
            return thread

    def give_back(self, threads: Iterable[LaneThread]) -> None:
        with self._lock:
            for thread in threads:
                self._out.discard(thread)
                self._idle[thread.name].append(thread)

    def close(self, timeout_s: float) -> list[str]:
        """End all threads; the names of those that hang. Calling it again tries those again."""
        with self._lock:
            self._closed = True
            threads = [*self._out, *(thread for idle in self._idle.values() for thread in idle)]
            self._idle.clear()
        hanging = [thread for thread in threads if not thread.end(timeout_s)]
        self._out = set(hanging)
        return [thread.name for thread in hanging]

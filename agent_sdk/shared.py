"""The agents of a process, for what has no agent of its own: opened when first needed, closed at the process's exit."""

import atexit
import threading
from contextlib import ExitStack
from typing import Final

from typing_extensions import override

from agent_sdk.agent import Agent
from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.session import Session


class Agents(Forks):
    """The agents of a process: one, and a second that leaves accelerators alone where the first drives some."""

    def __init__(self) -> None:
        self._opened: dict[bool, Agent] = {}
        self._lock = threading.Lock()
        watch_forks(self)
        atexit.register(self.close)

    @override
    def in_child(self) -> None:
        super().in_child()
        keep(self._opened)
        self._opened = {}

    def get(self, *, on_cores: bool) -> Agent:
        """The agent; ``on_cores`` for a caller who named providers, none of which is an accelerator's."""
        with self._lock:
            if not self._opened:
                self._opened[False] = Agent()
            agent = self._opened[False]
            cores = [spec.id for spec in agent.planned if all(own.startswith("cpu") for own in spec.resources)]
            if not on_cores or len(cores) == len(agent.planned):
                return agent
            if True not in self._opened:
                self._opened[True] = Agent(processors=",".join(cores))
            return self._opened[True]

    def close(self) -> None:
        with ExitStack() as closing:
            for agent in self._opened.values():
                closing.callback(agent.close)


AGENTS: Final = Agents()


def close_behind(session: Session) -> None:
    """Close a session on a thread of its own: whoever drops it last may be one that its end waits for."""
    threading.Thread(target=session.close, name="hope-close", daemon=True).start()

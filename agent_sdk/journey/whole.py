"""The whole network, which answers where there is no plan: loaded when needed, let go once a plan answers for good."""

import threading
from contextlib import closing

from agent_sdk.cancel import Cancel
from agent_sdk.errors import SESSION_CLOSED, DeviceClosedError, ExecutionError, ModelError
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.services import Services
from agent_sdk.model import Content
from agent_sdk.model.ports import About
from agent_sdk.runtimes.ort.whole import WholeOrt


class Whole(Forks):
    """One network as ONNX Runtime runs it by itself. May be used from any number of threads."""

    def __init__(self, services: Services, content: Content, cancel: Cancel) -> None:
        self._services, self._content, self._cancel = services, content, cancel
        self._lock = threading.RLock()
        self.loaded: WholeOrt | None = None
        self._about: About | None = None
        self._lent = self._closed = False
        watch_forks(self)

    def get(self, *, at_once: bool = False) -> WholeOrt:
        """It, loaded when it is first needed; ``at_once`` without trying it in a child before.

        Raises ModelError where it is refused, or DeviceClosedError.
        """
        with self._lock:
            if self._closed:
                raise DeviceClosedError(SESSION_CLOSED)
            if self.loaded is None:
                with self._cancel.current():
                    self.loaded = self._opened(at_once=at_once)
                self._about = self.loaded.about
            return self.loaded

    def _opened(self, *, at_once: bool) -> WholeOrt:
        """As the application would have it without us. Raises ModelError where it is refused.

        NOTE: nobody else runs a file as it is: of one that no graph was made of, no table can say who means the same.
        """
        if not at_once:
            self._services.first_runs.refuse_unjudged(self._content)
        here = self._services
        try:
            with self._content.opened() as given:
                return WholeOrt(given.file, len(here.soc.cores), here.device.held_by_whole, given.beside)
        except ExecutionError as error:
            raise ModelError(str(error)) from error

    def lend(self) -> WholeOrt:
        """It, for what only ONNX Runtime does: from then on one and the same. Raises like ``get``."""
        with self._lock:
            self._lent = True
            return self.get()

    @property
    def about(self) -> About:
        """What ONNX Runtime says of the file. Raises ModelError where that refuses it."""
        with self._lock:
            if self._about is None:
                with closing(self._opened(at_once=False)) as loaded:
                    self._about = loaded.about
            return self._about

    def let_go(self) -> None:
        """A plan answers for good: free it when its runs in progress have ended, unless it was lent."""
        with self._lock:
            if not self._lent:
                self.loaded = None

    def close(self) -> None:
        """Free it when its runs in progress have ended. Idempotent."""
        with self._lock:
            self._closed, self.loaded = True, None

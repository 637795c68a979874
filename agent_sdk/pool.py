"""Threads for what goes on behind callers; a process may be refused one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from agent_sdk.errors import ProcessorLost


class Pool(ThreadPoolExecutor):
    """Starts threads as they are needed, up to as many as it is given."""

    def begin(self, work: Callable[..., object], *given: object) -> None:
        """Have a thread do this; what it raises goes to ``threading.excepthook``, as if the thread were its own.

        Raises ProcessorLost where none can be started; then nobody does it.
        """
        unclaimed = [work]

        def claim() -> None:
            for own in _taken(unclaimed):
                try:
                    own(*given)
                except BaseException as error:  # noqa: BLE001  nobody waits for it
                    threading.excepthook(
                        threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
                    )

        try:
            self.submit(claim)
        except RuntimeError as error:
            # NOTE: it stays in the pool's queue where no thread starts: one that is at work comes round to it.
            if _taken(unclaimed):
                raise no_thread(error) from error


def begin_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Do something on a thread of its own, for whose end no program waits. Raises ProcessorLost where none starts."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(error) from error
    return thread


def no_thread(error: RuntimeError) -> ProcessorLost:
    """What is raised where the system refuses one."""
    return ProcessorLost(f"no thread could be started: {error}")


def _taken(unclaimed: list[Callable[..., object]]) -> list[Callable[..., object]]:
    """What one of those who ask gets, and nobody else."""
    try:
        return [unclaimed.pop()]
    except IndexError:
        return []

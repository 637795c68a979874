"""``python -m agent_sdk.first.child SETTING``: a process in which networks run for the first time.

A line of standard input asks for something, lines of standard output tell the steps and what came of it: data, never
pickles. The process ends with its parent, where its input ends, or once nobody has asked for a while.
"""

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

IDLE_S: Final = 10.0
"""A child that is not asked for so long ends: it holds a runtime's memory."""
STEP_S: Final = 0.05
"""After so long a step lets others have their turn."""


def main(setting: str) -> int:
    """Answer until there is nobody to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Runtimes print to standard output from C; the answers go to a private copy of it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # NOTE: imported here, because it takes a second, and a parent that is gone by then is noticed.
    from pydantic import TypeAdapter

    from agent_sdk.cancel import Cancel
    from agent_sdk.errors import said
    from agent_sdk.first import bench

    given = bench.Setting.model_validate_json(setting)
    with suppress(OSError, AttributeError):  # a core that is gone by now is none of this device's processors either
        os.sched_setaffinity(0, given.cores)
    own, read = bench.Bench(given), TypeAdapter(bench.Request).validate_json

    def tell(message: bench.Message) -> None:
        print(message.model_dump_json(exclude_defaults=True), file=answers, flush=True)

    class Borders(Cancel):
        """Where a loop asks whether it is still wanted, others may have their turn: what is held is asked for anew."""

        step, since = "", 0.0

        def begin(self, what: str) -> None:
            """Tell of a step, and wait until the device is held for it."""
            tell(bench.Message(step=what))
            if not sys.stdin.buffer.readline():
                os._exit(1)
            self.step, self.since = what, time.monotonic()

        def check(self) -> None:
            if self.step and time.monotonic() - self.since > STEP_S:
                self.begin(self.step)

    while select.select([0], [], [], IDLE_S)[0]:
        line = sys.stdin.buffer.readline()
        if not line:
            break
        try:
            borders = Borders()
            with borders.current():
                reply = own.answer(read(line), borders.begin)
        except Exception as error:  # noqa: BLE001  runtimes raise their own unrelated classes
            reply = bench.Reply(failure=said(error))
        tell(bench.Message(reply=reply.model_copy(update={"cpu_s": time.process_time()})))
    return 0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # runtimes would wait for their threads

"""Compile the planner's kernels, once: ``python -m planner_api.planning``."""

import threading
import time

from planner_api.planning.optimise import warm

BEAT_S = 1.5
"""How often it says for how long it has gone on."""


def _count(over: threading.Event) -> None:
    began = time.monotonic()
    while not over.wait(BEAT_S):
        print(f" {time.monotonic() - began:.0f} s", end="", flush=True)


if __name__ == "__main__":
    print("compiling the planner's search, once on this machine:", end="", flush=True)
    over = threading.Event()
    counting = threading.Thread(target=_count, args=(over,))
    counting.start()
    try:
        warm()
    finally:
        over.set()
        counting.join()
        print(" done")

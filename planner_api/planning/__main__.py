"""Compile the planner's kernels, once: ``python -m planner_api.planning``."""

import threading

from planner_api.planning.optimise import warm

DOT_S = 1.5
"""How often a dot says that it still goes on."""


def _dots(over: threading.Event) -> None:
    while not over.wait(DOT_S):
        print(".", end="", flush=True)


if __name__ == "__main__":
    print("compiling the planner's search, once on this machine: up to a minute", end="", flush=True)
    over = threading.Event()
    dots = threading.Thread(target=_dots, args=(over,))
    dots.start()
    try:
        warm()
    finally:
        over.set()
        dots.join()
        print()

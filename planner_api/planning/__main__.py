"""Compile the planner's kernels, once: ``python -m planner_api.planning``, each stage in a process of its own."""

import subprocess
import sys
import time

from planner_api.planning.warming import STAGES, load

BEAT_S = 1.5
"""How often it says for how long it has gone on."""


def main() -> int:
    """Compile every stage, side by side, or the one that is named."""
    if sys.argv[1:]:
        load(sys.argv[1])
        return 0
    print("compiling the planner's search, once on this machine:", end="", flush=True)
    began = time.monotonic()
    children = [subprocess.Popen([sys.executable, "-m", "planner_api.planning", stage]) for stage in STAGES]
    while any(child.poll() is None for child in children):
        time.sleep(BEAT_S)
        print(f" {time.monotonic() - began:.0f} s", end="", flush=True)
    print(" done")
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())

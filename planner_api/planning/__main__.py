"""Compile the planner's kernels, once: ``python -m planner_api.planning``."""

from planner_api.planning.optimise import warm

if __name__ == "__main__":
    print("compiling the planner's search, once on this machine", flush=True)
    warm()

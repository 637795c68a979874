"""The planner as the agent sees it: client, disk cache, the planner inside this process, identity."""

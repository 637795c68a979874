"""Running the planner: logs, metrics, traces, probes."""

"""``python -m benchmarks.service``: the planner under load, on loopback, in real processes on a real database."""

"""The HOPE planner: a REST service that keeps profiles, solves plans and serves them from a cache."""

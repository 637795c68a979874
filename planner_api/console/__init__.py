"""The console: the fleet as people see it in a browser, served by the planner itself under ``/console``."""

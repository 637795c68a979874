"""The HOPE agent: measures a device, asks the planner, and executes the plan."""

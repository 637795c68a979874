"""Pure planning: problem, simulator, solvers, bounds. No HTTP, no SQL, no clock but a budget."""

"""The console, in a real browser and beside it."""

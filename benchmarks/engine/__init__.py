"""The engine beside the runtimes: a network measured, all networks judged."""

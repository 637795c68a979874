"""Clocks, interleaved timing, profiling, and what a plan is worth once it was measured."""

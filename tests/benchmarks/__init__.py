"""Tests of what the benchmarks rest on."""

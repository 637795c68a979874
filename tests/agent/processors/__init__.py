"""Tests of the processors, the profiler and what is measured with them."""

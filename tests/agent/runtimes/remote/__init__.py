"""Tests of processors on other hosts."""

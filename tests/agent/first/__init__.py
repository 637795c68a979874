"""Tests of first runs in a child process."""

"""Tests of the policies, the scheduler and what runs several networks."""

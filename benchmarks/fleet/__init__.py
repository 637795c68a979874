"""The fleet: what releases do to it, what its reports cost, and how large it makes the database.

``benchmarks.service`` measures the service request by request, and one pass of a fleet for its first plans; here a
fleet lives: releases that do harm and releases that do not, devices that report, a week's rows.
"""

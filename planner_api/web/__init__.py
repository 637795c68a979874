"""What every route shares: bodies within limits, problems, the caller, logs, metrics and probes."""

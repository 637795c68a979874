"""First runs: in a child process, for whatever is new may end the process that runs it."""

"""The operators' command line: a table of calls on the HTTP API, one client, one way to show answers."""

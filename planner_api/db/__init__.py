"""Tables, sessions and migrations: the one place that knows SQL dialects apart."""

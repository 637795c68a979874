"""``hope-planner``: what an admin types, on the database or as calls on the HTTP API."""

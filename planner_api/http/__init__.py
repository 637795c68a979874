"""What every route shares: bodies within limits, and the documentation of requests and answers."""

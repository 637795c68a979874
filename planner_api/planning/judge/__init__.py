"""What a placement and an order amount to: the one simulator, its kernel, and the independent checker."""

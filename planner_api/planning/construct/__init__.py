"""Methods that place op by op and answer at once."""

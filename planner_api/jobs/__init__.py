"""One queue for all that takes processor time: who does what, where, exactly once. It knows no plan and no profile."""

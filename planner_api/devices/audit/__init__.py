"""The audit log: who did what, written in the transaction that did it."""

"""Aliases: names that stand for a version of a model and may come to stand for another one."""

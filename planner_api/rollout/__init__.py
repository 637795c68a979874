"""Releases: new versions go out in stages, are watched, and come back by themselves where they do harm."""

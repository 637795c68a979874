"""The runtimes that can run a segment of a network, a folder each, behind one small interface: ``base.py``."""

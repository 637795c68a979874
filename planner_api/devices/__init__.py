"""Devices: how they enrol, who may do what, how often, and what they report about themselves."""

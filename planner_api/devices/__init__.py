"""Devices: how they enrol, who may do what, how often, what they report; in which groups they are; the audit log."""

"""The torch runtime, on torch's CPU device."""

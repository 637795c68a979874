"""Profiles: uploads in, robust statistics inside, one versioned profile per SoC and frequency out."""

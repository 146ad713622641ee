"""Judging clients by the synthetic sets that they send."""

"""Tests of fedstill.data."""

"""Philox counters of the generators; the streams of `transnormer.data.sampling` are small numbers, these stay clear."""

LISTOPS, PATHFINDER = 16, 17

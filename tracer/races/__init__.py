"""Races: accesses to the same bytes whose order nothing guarantees."""

"""Races: accesses to the same bytes whose order nothing guarantees, in a recording or a program that is run."""

"""Recordings that readers start: `intertoken run` in a process of its own, watched by another."""

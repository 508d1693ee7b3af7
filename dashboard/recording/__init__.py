"""Recordings that readers start: `intertoken run` in a separate process, which another process supervises."""

"""Recordings where they are stored: read once, and as the passes of a run directory."""

"""Pure functions from a Trace to tables and figures: one question per file."""

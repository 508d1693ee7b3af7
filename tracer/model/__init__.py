"""The trace model: tables and their columns, intervals and the facts of a run directory."""

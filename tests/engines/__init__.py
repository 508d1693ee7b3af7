"""Engines simulated: what a recorder would write of them, and what is true of them by construction."""

"""Devices in virtual time, at the costs of one of `profiles`: `backend.SimBackend`, and its host."""

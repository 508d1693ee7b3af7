"""Pages: their layouts and callbacks. Nothing is computed here."""

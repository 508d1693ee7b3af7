"""Seeing what happened: a Dash app over the traces that `tracer` reads."""

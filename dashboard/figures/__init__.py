"""Figures: pure functions from tables to Plotly figures."""

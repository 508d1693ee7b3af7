"""From a trace to what a timeline draws: rows, level of detail, alignment, layout, marks. No Plotly in here."""

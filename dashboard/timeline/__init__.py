"""From a trace to what a timeline draws: rows, alignment, layout, level of detail, marks."""

"""The overview: a table of runs, the timelines of the chosen ones, and what their gaps are made of."""

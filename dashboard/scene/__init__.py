"""The timeline of runs as a view shows it: range, choice, sums, differences, and its drawing."""

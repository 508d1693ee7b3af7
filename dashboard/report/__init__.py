"""The comparison of runs as one self-contained HTML file."""

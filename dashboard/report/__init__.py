"""The comparison of runs as one HTML file that asks for nothing else."""

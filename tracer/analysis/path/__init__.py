"""Dependencies between calls and device activities, the critical path of each token, and the slack of everything
else."""

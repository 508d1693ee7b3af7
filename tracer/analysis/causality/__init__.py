"""Why each token took as long as it did: what waits for what, the critical path, and the slack of everything else."""

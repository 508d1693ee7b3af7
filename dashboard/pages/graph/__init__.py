"""The graph of a run: its streams, forks and joins, its kernels' times, and what each allocator takes."""

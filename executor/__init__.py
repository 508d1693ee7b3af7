"""Running decode loops: graphs, passes, strategies, backends, and the runs that compare them."""

"""Making it happen: graphs, passes, strategies, backends and the runs that compare them."""

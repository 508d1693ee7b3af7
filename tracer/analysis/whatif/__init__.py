"""What would change: another strategy, without a sync, as one graph, on several streams, with other costs."""

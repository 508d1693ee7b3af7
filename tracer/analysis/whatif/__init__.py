"""What-ifs: predictions for another strategy, without syncs, as one graph, on several streams, or with other costs."""

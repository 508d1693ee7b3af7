"""What-ifs: predictions for another strategy, without syncs, as one graph, or with other costs."""

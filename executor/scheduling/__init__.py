"""Token steps one after another: `scheduler.Scheduler` runs the pieces of a step as a strategy of `strategies` says."""

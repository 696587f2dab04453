"""What people look at: summaries of rollouts, training, costs and a search, read from spans."""

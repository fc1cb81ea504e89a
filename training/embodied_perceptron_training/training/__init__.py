"""Training: one loop for every task. A task defines model, data and losses; the loop is independent of them."""

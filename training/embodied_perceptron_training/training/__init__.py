"""Training: one loop for every task. A task says what is learned from which data; the loop knows neither."""

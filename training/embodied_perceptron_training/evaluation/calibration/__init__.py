"""What scores are worth, fitted to homes that the network does not know."""

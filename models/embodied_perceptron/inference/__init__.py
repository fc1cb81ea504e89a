"""From a trained network and a map to typed predictions."""

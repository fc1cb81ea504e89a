"""Finding one's place in a saved map: features of keyframes, their matches, and what depth says of a place."""

"""The reader of sentences: a network, its graph over the words, and what is decoded of it."""

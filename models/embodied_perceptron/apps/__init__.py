"""Programs over the library: the command line, replay, doctor."""

"""The map as tools of a language-model agent: Model Context Protocol over a saved map or a running node."""

"""Families of version 2 beside those of version 1: seats, tables, cases, plants, small things, and what has no name."""

"""Shipped weights as package data."""

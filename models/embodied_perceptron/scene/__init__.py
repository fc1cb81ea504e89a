"""Objects that persist, and sentences about them."""

"""Sweet Home 3D models that ship with this package, their authors (``ATTRIBUTION.md``), and their reader."""

"""Sweet Home 3D models that ship with this package, their roles (``roles.json``), their authors (``ATTRIBUTION.md``),
and their reader."""

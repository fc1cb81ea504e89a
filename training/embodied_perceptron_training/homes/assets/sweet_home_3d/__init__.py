"""Sweet Home 3D models, their roles (``roles.json``), their authors (``ATTRIBUTION.md``) and their reader."""

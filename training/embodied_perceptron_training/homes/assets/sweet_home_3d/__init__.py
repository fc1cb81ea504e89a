"""Models of Sweet Home 3D's furniture libraries as data of this project: ``models.npz``, ``models.json``, who made them
(``ATTRIBUTION.md``), which role each plays (``roles.json``), and the tool that makes them again."""

"""Images of homes: materials, light, two renderers."""

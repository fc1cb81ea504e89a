"""Which categories the generator can make, and where the names come from."""

from embodied_perceptron.categories import ALL_CATEGORIES

CATEGORIES = ALL_CATEGORIES  # semantic id = position + 1

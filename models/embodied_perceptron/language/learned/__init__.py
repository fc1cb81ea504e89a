"""The learned reader of sentences: a choice beside the rules of :mod:`embodied_perceptron.language.parser`."""

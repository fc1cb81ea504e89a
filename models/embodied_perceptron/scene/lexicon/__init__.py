"""Words as data: ``nouns.json`` says what kinds of things are called, ``relations.json`` how relations are said."""

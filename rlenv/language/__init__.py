"""The language of specs: a file to a typed, checked spec; templates, expressions and kinds by name."""

"""Building blocks of models, independent of text and files."""

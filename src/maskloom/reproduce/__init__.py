"""The experiments of the BERT paper as commands: each a table of models, what measures them, and stated tests."""

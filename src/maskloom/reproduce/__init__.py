"""Experiments from the BERT paper as commands, each with a table of models, their measurements and stated trends."""

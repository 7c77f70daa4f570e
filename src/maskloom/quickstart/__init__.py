"""The quick start: train, evaluate and use a BERT on the documentation on this machine, in minutes."""

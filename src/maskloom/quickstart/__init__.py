"""The quick start: from documentation on this machine to a BERT of one's own, measured and used, in minutes."""

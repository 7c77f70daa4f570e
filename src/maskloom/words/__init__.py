"""Word vectors: word2vec's CBOW and skip-gram (Mikolov et al. 2013), from text to files, neighbours and scores."""

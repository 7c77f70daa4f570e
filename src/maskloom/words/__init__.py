"""Word vectors: CBOW and skip-gram of word2vec (Mikolov et al. 2013), from text to files, neighbours and scores."""

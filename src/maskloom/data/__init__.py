"""From token ids to batches: documents, shards, sentence pairs, masking, exact positions. Does not use torch."""

"""Token ids to batches: documents, shards, sentence pairs, masking, exact position. No torch."""

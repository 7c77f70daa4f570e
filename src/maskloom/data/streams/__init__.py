"""Sources of rows for pre-training batches: endless, seekable streams over the documents of a corpus."""

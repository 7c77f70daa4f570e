"""Where the rows of pre-training batches come from: endless, seekable streams over the documents of a corpus."""

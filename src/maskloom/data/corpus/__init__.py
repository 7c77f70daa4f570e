"""From text files to shards of tokens."""

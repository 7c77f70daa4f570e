"""Turn text files into token shards."""

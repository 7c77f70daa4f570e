"""Questions whose answer is a span of their context (BERT paper 4.2, 4.3)."""

"""Multiple choice: which of several texts goes with a context (BERT paper 4.4)."""

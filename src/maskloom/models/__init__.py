"""One file per architecture, heads, outputs, and the table of architectures."""

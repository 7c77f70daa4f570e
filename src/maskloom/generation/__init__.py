"""Text from a left-to-right model, token by token."""

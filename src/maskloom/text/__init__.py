"""From characters to token ids: normalisation, sentence splitting, vocabulary training and tokenizers. No torch."""

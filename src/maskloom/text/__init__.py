"""Characters to token ids: normalisation, sentences, vocabulary training, tokenizer. No torch."""

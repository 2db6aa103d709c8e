"""Models from files and back: safetensors, GGUF, tokenizers, folders, what can be fetched."""

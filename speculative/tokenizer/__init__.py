"""Text to token ids and back: `load`, `from_gguf` and `from_directory`."""

from speculative.tokenizer.loading import from_directory
from speculative.tokenizer.loading import from_gguf
from speculative.tokenizer.loading import load

__all__ = ['from_directory', 'from_gguf', 'load']

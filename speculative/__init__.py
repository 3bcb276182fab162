"""Lossless speculative decoding of large language models in JAX."""

from speculative.api import load
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError

__all__ = ['DrafterConfig', 'UserError', 'load']

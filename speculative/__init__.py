"""Lossless speculative decoding of large language models in JAX."""

from speculative.api import load
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.sharding import MeshConfig

__all__ = ['DrafterConfig', 'MeshConfig', 'UserError', 'load']

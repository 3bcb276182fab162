"""Training of draft models: text, losses and the loop."""

"""How models are trained: losses and metrics."""

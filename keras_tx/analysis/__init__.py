"""What a model looked at."""

from keras_tx.analysis.attention_plot import plot_attention

__all__ = ["plot_attention"]

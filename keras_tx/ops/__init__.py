"""Pure functions on tensors, on every backend. They own no weights."""

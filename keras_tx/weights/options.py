"""A configuration of transformers, read option by option."""

REQUIRED = object()

# What transformers calls an activation, and what it is called here.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Options:
    """Reads a dictionary as in `config.json`; says what is missing or cannot be honoured."""

    def __init__(self, config: dict):
        self.config = config
        self.model_type = config["model_type"]

    def get(self, name: str, default=None):
        """The value, which may be None, or the default where the option is absent."""
        return self.config.get(name, default)

    def first(self, *names, default=REQUIRED):
        """The value of the first of these names that has one."""
        for name in names:
            if self.config.get(name) is not None:
                return self.config[name]
        if default is not REQUIRED:
            return default
        listed = " or ".join(f"`{name}`" for name in names)
        raise ValueError(f"The configuration of a {self.model_type} model must have {listed}")

    def __getitem__(self, name):
        return self.first(name)

    def require(self, name: str, *honoured):
        """Raises ValueError unless the option is absent or one of these values."""
        if self.get(name, honoured[0]) not in honoured:
            raise self.refusal(name, honoured)

    def activation(self, name: str, default: str) -> str:
        value = self.first(name, default=default)
        if value not in ACTIVATIONS:
            raise self.refusal(name, ACTIVATIONS)
        return ACTIVATIONS[value]

    def refusal(self, name: str, honoured) -> ValueError:
        expected = ", ".join(repr(value) for value in honoured)
        return ValueError(
            f"`{name}` of a {self.model_type} model must be one of what is supported here, "
            f"{expected}. Received: {self.get(name)!r}"
        )

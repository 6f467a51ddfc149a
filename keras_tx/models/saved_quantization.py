"""A quantized model loads as it was saved."""

import keras


class SavedQuantization:
    """Mixin for a Keras model whose layers are made by its constructor.

    `quantize` changes layers one by one, of which the constructor's arguments know nothing: which
    ones, and how, is one more entry of the configuration, while there are any.
    """

    def get_config(self):
        config = super().get_config()
        quantized = {
            layer.path: {
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(
                    getattr(layer, "quantization_config", None)
                ),
            }
            for layer in self._flatten_layers(include_self=False)
            if getattr(layer, "quantization_mode", None)
        }
        return {**config, "quantized": quantized} if quantized else config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantized = config.pop("quantized", {})
        model = super().from_config(config)
        layers = {layer.path: layer for layer in model._flatten_layers()}
        for path, how in quantized.items():
            config = keras.saving.deserialize_keras_object(how["config"])
            layers[path].quantize(how["mode"], **({} if config is None else {"config": config}))
        return model

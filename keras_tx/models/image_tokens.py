"""From pixels to the tokens that the blocks of a vision transformer read."""

import keras
from keras import ops

from keras_tx.layers.learned_encoding import LearnedEncoding
from keras_tx.layers.parts import fresh
from keras_tx.layers.patch_embedding import PatchEmbedding, patch_pair
from keras_tx.ops.sinusoid import sinusoid_2d

POSITIONS = ("learned", "sinusoidal", None)


class ImageTokens:
    """Mixin: class token, distillation token, registers, then patches with positions.

    Learned positions are of all but the registers, sinusoids of the patches alone.
    """

    def _make_embeddings(self, has_class_token: bool):
        self.patch_embedding = PatchEmbedding(
            self.patch_size, self.hidden_dim, name="patch_embedding", dtype=self.dtype_policy
        )
        images = (None, *patch_pair(self.image_size), self.num_channels)
        self.patch_embedding.build(images)
        num_patches = self.patch_embedding.compute_output_shape(images)[1]
        initializer = keras.initializers.TruncatedNormal(stddev=0.02)

        def tokens(name, count):
            if not count:
                return None
            return self.add_weight(
                shape=(1, int(count), self.hidden_dim), initializer=fresh(initializer), name=name
            )

        self.class_token = tokens("class_token", has_class_token)
        self.distillation_token_vector = tokens("distillation_token", self.distillation_token)
        self.register_tokens = tokens("register_tokens", self.num_register_tokens)
        num_placed = int(has_class_token) + int(self.distillation_token)
        self.num_prefix_tokens = num_placed + self.num_register_tokens
        self.position_encoding = None
        if self.position == "learned":
            self.position_encoding = LearnedEncoding(
                num_placed + num_patches,
                embeddings_initializer=fresh(initializer),
                name="position_encoding",
                dtype=self.dtype_policy,
            )
            self.position_encoding.build((None, None, self.hidden_dim))
        if self.position == "sinusoidal" and self.hidden_dim % 4:
            raise ValueError(
                "Two-dimensional sinusoids need a `hidden_dim` divisible by 4. "
                f"Received: {self.hidden_dim}"
            )
        self.embedding_dropout = keras.layers.Dropout(
            self.dropout, name="embedding_dropout", dtype=self.dtype_policy
        )

    def _embed(self, images, training):
        pixels = ops.cast(images, "float32") / 255.0
        pixels = (pixels - ops.convert_to_tensor(self.pixel_mean, "float32")) / (
            ops.convert_to_tensor(self.pixel_std, "float32")
        )
        x = self.patch_embedding(ops.cast(pixels, self.compute_dtype))
        if self.position == "sinusoidal":
            rows, columns = self.patch_embedding.grid(images.shape)
            x = x + ops.cast(sinusoid_2d(rows, columns, self.hidden_dim), x.dtype)
        x = self._insert(x, 0, self.class_token, self.distillation_token_vector)
        if self.position_encoding is not None:
            x = self.position_encoding(x)
        x = self._insert(x, self.num_prefix_tokens - self.num_register_tokens, self.register_tokens)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.embedding_dropout(x, training=training)

    def _insert(self, x, place, *tokens):
        """Puts those of the tokens (1, n, D) that there are into every row of x at a place."""
        tokens = [ops.cast(token, x.dtype) for token in tokens if token is not None]
        if not tokens:
            return x
        batch = ops.shape(x)[0]
        tokens = [
            ops.broadcast_to(token, (batch, token.shape[1], self.hidden_dim)) for token in tokens
        ]
        return ops.concatenate([x[:, :place], *tokens, x[:, place:]], axis=1)

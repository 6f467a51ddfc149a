"""Routing tokens to experts with compute that grows with the number of choices.

Choices are sorted by expert and each expert's run is padded to whole blocks, so that all shapes
follow from the number of choices (static, none dropped) and every block is one expert's.
"""

from keras import ops


def route_top_k(router_logits, top_k: int):
    """The experts of each token and their weights.

    Args:
        router_logits: (M, E).
        top_k: Experts chosen for a token.

    Returns:
        probabilities (M, E) float32; experts (M, k) int32; weights (M, k) float32, the
        probabilities of the chosen divided by their sum.
    """
    probabilities = ops.softmax(ops.cast(router_logits, "float32"), axis=-1)
    chosen, experts = ops.top_k(probabilities, top_k)
    return probabilities, ops.cast(experts, "int32"), chosen / ops.sum(chosen, -1, keepdims=True)


def block_size(num_choices, num_experts: int) -> int:
    """Rows in a block: about an expert's share, from 8 to 128; 64 when the number is unknown."""
    if not isinstance(num_choices, int):
        return 64
    size = 8
    while size < 128 and size * num_experts < num_choices:
        size *= 2
    return size


def sort_into_blocks(experts, num_experts: int, size: int):
    """Places each choice in a row of its expert's blocks.

    Args:
        experts: (A,) int32, the expert of each choice.
        num_experts: E.
        size: Rows in a block.

    Returns:
        row_of_choice (A,) int32; choice_of_row (L,) int32, A at rows that hold none;
        expert_of_block (L / size,) int32, with L = (A // size + E) * size.
    """
    num_choices = ops.shape(experts)[0]
    num_blocks = num_choices // size + num_experts
    order = ops.cast(ops.argsort(experts, axis=0), "int32")  # stable or not, any order will do
    counts = ops.sum(ops.cast(experts[:, None] == ops.arange(num_experts), "int32"), axis=0)
    blocks = (counts + size - 1) // size
    block_ends = ops.cumsum(blocks)
    sorted_experts = ops.take(experts, order)
    start = ops.take((block_ends - blocks) * size - (ops.cumsum(counts) - counts), sorted_experts)
    row = ops.arange(num_choices, dtype="int32") + ops.cast(start, "int32")  # in sorted order
    row_of_choice = ops.scatter_update(ops.zeros_like(order), order[:, None], row)
    choice_of_row = ops.scatter_update(
        ops.zeros((num_blocks * size,), "int32") + num_choices, row[:, None], order
    )
    block = ops.arange(num_blocks, dtype="int32")
    passed = ops.sum(ops.cast(block[:, None] >= block_ends[None, :], "int32"), axis=1)
    return row_of_choice, choice_of_row, ops.minimum(passed, num_experts - 1)


def balance_loss(probabilities, experts, mask=None):
    """E sum_e f_e P_e, 1 when the load is even; f_e the share of choices, P_e the mean probability.

    Args:
        probabilities: (M, E) float32.
        experts: (M, k) int32.
        mask: Boolean (M,), True at real tokens; the others count nowhere.

    Returns:
        float32 scalar; 0 when no token is real.
    """
    num_experts, top_k = probabilities.shape[-1], experts.shape[-1]
    chosen = ops.sum(ops.one_hot(experts, num_experts, dtype="float32"), axis=1) / top_k  # (M, E)
    weights = ops.ones_like(probabilities[:, 0]) if mask is None else ops.cast(mask, "float32")
    if mask is not None:  # a weight of 0 does not hide a NaN
        probabilities = ops.where(weights[:, None] > 0, probabilities, 0.0)
    total = ops.sum(weights)
    total = ops.where(total > 0, total, 1.0)
    share = ops.sum(chosen * weights[:, None], axis=0) / total
    mean = ops.sum(probabilities * weights[:, None], axis=0) / total
    return num_experts * ops.sum(ops.stop_gradient(share) * mean)

"""Fewer operations for the same results, in a graph that PyTorch traced.

Each operation of a small model's step takes PyTorch as long to call as to compute.
"""

import operator
from types import SimpleNamespace

import torch

aten = torch.ops.aten
# They give the same elements in the same order.
RESHAPES = {aten.view.default, aten.unsqueeze.default, aten.squeeze.dim}
# They share the memory of what they read, and do not say so.
SECRET_VIEWS = {operator.getitem, aten._unsafe_view.default}
# A larger constant is cheaper to make again than to keep.
LARGEST_CONSTANT = 2**16


def simplify(module, lent: int = 0):
    """Rewrites a `GraphModule` of core operations, as `make_fx` makes it, in place.

    The first `lent` inputs may be written into: nobody else reads them any more.
    """
    _join_reshapes(module.graph)
    module.graph.eliminate_dead_code()
    _skip_copies(module.graph, lent)
    _share_results(module.graph)
    _keep_constants(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def depends_on_values(module) -> bool:
    """Whether an operation gives a size, or a number, that another step's values would change."""
    tags = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    return any(_is_operation(node) and tags & {*node.target.tags} for node in module.graph.nodes)


def without_graph(module):
    """The function of tensors that a `GraphModule` is; the graph takes many times its memory."""
    run = type(module).forward
    names = [node.target for node in module.graph.nodes if node.op == "get_attr"]
    constants = SimpleNamespace(**{name: getattr(module, name) for name in names})
    return lambda *tensors: run(constants, *tensors)


def _skip_copies(graph, lent):
    """What is read by nothing but the copy of it need not be copied."""
    own = [node for node in graph.nodes if node.op == "placeholder"][:lent]
    own += [node for node in graph.nodes if _is_pure(node) and not _is_view(node)]
    for node in own:
        value, users = node.meta.get("val"), list(node.users)
        if (
            len(users) == 1
            and users[0].target is aten.clone.default
            and torch.is_tensor(value)
            and value.is_contiguous()
        ):
            users[0].replace_all_uses_with(node)


def _keep_constants(module):
    """What no input decides is computed now; not what reads a weight, which may change."""
    changing, constants = _written(module.graph) | _returned(module.graph), {}
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node in changing or not _is_pure(node) or any(x not in constants for x in inputs):
            continue
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), constants.get)
        constants[node] = node.target(*arguments, **keywords)
    for number, (node, value) in enumerate(constants.items()):
        is_needed = any(user not in constants for user in node.users)
        if is_needed and torch.is_tensor(value) and value.numel() <= LARGEST_CONSTANT:
            name = f"_kept_{number}"
            module.register_buffer(name, value)
            with module.graph.inserting_before(node):
                kept = module.graph.get_attr(name)
            kept.meta.update(node.meta)
            node.replace_all_uses_with(kept)


def _share_results(graph):
    """The same operation on the same inputs is done once."""
    written = _written(graph)
    unique, known = written | _returned(graph), {}
    for node in list(graph.nodes):
        if node in unique or not _is_pure(node) or written.intersection(node.all_input_nodes):
            continue
        same = known.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _join_reshapes(graph):
    """Of reshapes in a row the last one alone, and none where the shape is that of the first."""
    for node in list(graph.nodes):
        if node.target not in RESHAPES or _shape(node) is None:
            continue
        source = node.args[0]
        while source.target in RESHAPES:
            source = source.args[0]
        if _shape(source) == _shape(node):
            node.replace_all_uses_with(source)
        elif source is not node.args[0]:
            node.target, node.args = aten.view.default, (source, list(_shape(node)))


def _written(graph) -> set:
    """All names of memory that some operation writes to."""
    return _aliases(graph, {x for node in graph.nodes for x in _written_by(node)})


def _returned(graph) -> set:
    """All names of memory that is handed out: whoever gets it may write to it."""
    return _aliases(graph, graph.output_node().all_input_nodes)


def _aliases(graph, nodes) -> set:
    """The nodes, those whose memory they share, and those that share it with these."""
    found = set()
    for node in nodes:
        while _is_view(node):
            node = node.all_input_nodes[0]
        found.add(node)
    for node in graph.nodes:
        if _is_view(node) and found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _written_by(node):
    if not _is_operation(node):
        return []
    written = []
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            written += given if isinstance(given, (list, tuple)) else [given]
    return [x for x in written if isinstance(x, torch.fx.Node)]


def _is_operation(node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def _is_view(node) -> bool:
    if node.target in SECRET_VIEWS:
        return True
    return _is_operation(node) and any(
        result.alias_info is not None for result in node.target._schema.returns
    )


def _is_pure(node) -> bool:
    """Whether nothing but its inputs decides what it gives, and it gives nothing else."""
    if node.target is operator.getitem:
        return True
    return (
        _is_operation(node)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _shape(node):
    value = node.meta.get("val")
    return tuple(value.shape) if torch.is_tensor(value) else None

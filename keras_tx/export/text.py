def generates(model):
    return hasattr(model, "start") and hasattr(model, "step")


def resources(model):
    return []

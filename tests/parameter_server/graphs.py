"""What runs before what in a graph."""


def before(operation):
    """All operations of a graph that run before this one."""
    found, left = set(), [operation]
    while left:
        op = left.pop()
        more = {*op.control_inputs, *(t.op for t in op.inputs)} - found
        found |= more
        left += more
    return found

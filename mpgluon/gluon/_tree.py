"""What modules beside block.py see of a block: children, parameters, hooks, programs, groups."""


def children(block):
    """The blocks inside a block, by the names of its attributes: the block's own dict."""
    return block._children


def own_parameters(block):
    """The parameters that are a block's own, not its children's, by the names that
    ``hybrid_forward`` gets them under: the block's own dict."""
    return block._reg_params


def forward_hooks(block):
    """The functions that are called behind a block's forward: a dict."""
    return block._forward_hooks


def forget_hooks(block):
    """Gives all hooks up."""
    block._forward_hooks, block._forward_pre_hooks = {}, {}


def is_hybridized(block):
    """Whether calls of the block are compiled."""
    return getattr(block, "_active", False)


def can_be_hybridized(block):
    """Whether it is a HybridBlock."""
    return hasattr(block, "_active")


def forget_compiled(block):
    """Gives up what is compiled for a block, if it is one that can be."""
    if hasattr(block, "_clear_compiled"):
        block._clear_compiled()


def group_of(block):
    """The group of devices that the block itself is in, or None."""
    return block._ctx_group


def set_group(block, group):
    """Puts the block itself into a group; None takes it out."""
    block._ctx_group = group


def devices_of_groups(block):
    """What says where groups are while the block runs: a dict of groups to devices, one for each
    replica (`parallel._mesh.Replicas`), or None."""
    return block._group2ctx


def set_devices_of_groups(block, devices):
    """Sets what `devices_of_groups` gives."""
    block._group2ctx = devices

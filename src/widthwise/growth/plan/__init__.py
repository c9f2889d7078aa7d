"""How every tensor of a grown model is made from the tensors of the old one."""

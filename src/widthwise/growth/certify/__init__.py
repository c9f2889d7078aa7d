"""A grown model compared with the one it came from: same function, same gradients, new entries that learn."""

"""The widths of tokens in dynamic-width layers: how they are distributed, and what they go with."""

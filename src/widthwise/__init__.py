"""widthwise: language models whose width is a design variable."""

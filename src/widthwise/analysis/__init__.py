"""What a finished model does inside, seen from outside: it is run as it is, and statistics are kept on the way."""

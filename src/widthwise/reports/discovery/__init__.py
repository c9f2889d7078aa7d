"""The page of a discovery."""

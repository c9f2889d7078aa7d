"""What every page is made of: templates, figures, tables, numbers as text."""

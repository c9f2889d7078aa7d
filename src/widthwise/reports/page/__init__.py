"""What all pages share: templates, figures, tables, numbers as text."""

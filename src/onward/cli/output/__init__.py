"""What people and programs see: text, documents, colours, figures, errors."""

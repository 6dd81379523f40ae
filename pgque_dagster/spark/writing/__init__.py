"""How rows of a DataFrame become events: options, columns, COPY."""

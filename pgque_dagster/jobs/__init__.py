"""Jobs that a person or a schedule starts."""

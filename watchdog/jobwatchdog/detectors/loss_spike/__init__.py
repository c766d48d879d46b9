"""A loss that leaps above its own recent level."""

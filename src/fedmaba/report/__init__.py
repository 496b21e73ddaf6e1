"""What people look at; reads a History and never runs anything."""

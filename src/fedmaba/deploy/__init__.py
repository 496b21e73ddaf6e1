"""A real federation: the server, its clients, and what is checked between them."""

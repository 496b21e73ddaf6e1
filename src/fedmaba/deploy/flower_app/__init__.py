"""A complete Flower app to start from, and the processes of a federation on one machine.

Nothing here imports flwr: the app is text, and Flower's programs are started by name.
"""

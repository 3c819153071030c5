"""The ready-made search spaces, and the page about them."""

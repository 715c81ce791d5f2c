"""What is known of each engine between two polls, stepped page by page, and the registry of all of them."""

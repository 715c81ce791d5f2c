"""What a look back finds at 15, 30 and 60 s, against recordings and simulated engines of known truth."""

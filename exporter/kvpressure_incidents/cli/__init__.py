"""The command of the look back."""

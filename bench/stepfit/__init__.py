"""A prototype: how long steps take, fitted from pages with physical terms and a prior, against the truth."""

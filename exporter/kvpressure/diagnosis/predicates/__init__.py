"""The questions that rules are made of, each with the evidence that its answer rests on.

Names of evidence are signals of a page (`runtimes.table`, fields of `CacheConfig`) or sources (`missing.SOURCES`).
What could not be known from any page or source has none.
"""

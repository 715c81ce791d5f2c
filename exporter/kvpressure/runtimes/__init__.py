"""PURE: everything that is specific to one runtime, a folder each, and the tables that their pages are read by.

A package in this folder that has a `RUNTIME` is a runtime; `registry` finds it, and nothing else names it.
"""

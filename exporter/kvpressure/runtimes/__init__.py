"""PURE: everything that is one runtime's own, a folder each, and what reads pages by a runtime's table.

A package in this folder that has a `RUNTIME` is a runtime; `registry` finds it, and nothing else names it.
"""

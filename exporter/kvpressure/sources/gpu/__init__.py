"""GPUs: each vendor's library is read in a child process that can be killed (docs/internals/decisions/0020).

`source.py` is what the daemon starts; `backend.py` holds the Protocol and the table of vendors.
This file imports nothing: the child process pays for every import in resident memory.
"""

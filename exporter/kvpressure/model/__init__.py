"""The records that travel between layers. Imports nothing of ours but itself; reads no clock, file or socket."""

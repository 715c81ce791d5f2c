"""PURE: what objects of the API server tell, as small frozen records. No clock, no file, no socket."""

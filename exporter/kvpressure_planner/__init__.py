"""kvpressure's planner: safe limits of a model or an engine, and what other limits would do."""

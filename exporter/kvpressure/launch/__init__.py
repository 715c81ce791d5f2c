"""PURE: how an engine was started (command, arguments, environment, annotations) to the limits that were declared."""

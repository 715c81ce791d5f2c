"""The queue in front of engines: what gateways that hold requests back report of it."""

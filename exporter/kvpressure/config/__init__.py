"""What an operator writes down: settings, thresholds, and the strict YAML that both are read with."""

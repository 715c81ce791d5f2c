"""Every rule, in a file for each cause or for a few that are alike. Which goes before which is `precedence`."""

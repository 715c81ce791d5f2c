"""Tools at the prompt, which the daemon never imports: the audit of manifests, past incidents, the generated bundle."""

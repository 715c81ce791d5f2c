"""How well causes are found: labelled episodes through the pipeline, beside the rules people use today."""

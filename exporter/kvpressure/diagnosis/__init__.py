"""PURE: derived values to verdicts: symptoms, one cause, score, confidence, stage."""

# For pint, as tests/rules/test_lints.py runs it: what it would say of the rules beside errors, and why that is meant.
checks {
  disabled = [
    # `max without (symptom)` in a binary expression: both sides come from the same page of the same exporter, so their labels are
    # the same, and `without` is what lets labels of the user (cluster, region) through.
    "promql/fragile",
  ]
}

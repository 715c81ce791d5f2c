"""Builders of the Grafana dashboards; `python -m dashboards` (`make dashboards`) writes what they make.

A builder writes a template: JSON in which a threshold is `[[ limits.name ]]` and the exporters' label matchers are
`[[ selector ]]`. `kvpressure generate` fills templates in (`kvpressure/bundle/dashboards.py`): a user needs no builder.
"""

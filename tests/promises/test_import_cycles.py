"""No module of the package imports itself by way of others, wherever in a file; imports for types alone are none."""

import graphlib

import grimp


def cycle(graph: grimp.ImportGraph) -> list[str]:
    """Return one cycle of imports, empty where there is none."""
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_modules_import_each_other_in_one_direction():
    graph = grimp.build_graph(
        "kvpressure", "kvpressure_planner", "kvpressure_incidents", exclude_type_checking_imports=True
    )
    assert cycle(graph) == []
    graph.add_import(importer="kvpressure.cli.sampling", imported="kvpressure.cli.triage.pod")
    assert {"kvpressure.cli.sampling", "kvpressure.cli.triage.pod"} <= set(cycle(graph))

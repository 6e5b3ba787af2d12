"""Imports between modules: none stands in a circle of imports, in either package."""

import grimp
import networkx
import pytest


@pytest.mark.parametrize("package", ["recycle_compiler", "recycle_runtime"])
def test_no_import_cycles(package: str) -> None:
    """Imports inside functions and for type checkers count too: they show the same knot."""
    imports = grimp.build_graph(package, cache_dir=None)
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for module in imports.modules:
        graph.add_edges_from((module, other) for other in imports.find_modules_directly_imported_by(module))
    knots = [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]
    assert knots == []

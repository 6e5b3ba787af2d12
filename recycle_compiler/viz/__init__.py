"""Plans as people and tools read them: a grid, JSON, disassembly."""

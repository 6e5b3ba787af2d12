"""Shared by compiler and runtime: instructions, streams as text, bundles, plans. Standard library only."""

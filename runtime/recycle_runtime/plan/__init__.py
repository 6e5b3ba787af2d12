"""What compiler and runtime share: instructions, streams as text, bundles, plans. Standard library only."""

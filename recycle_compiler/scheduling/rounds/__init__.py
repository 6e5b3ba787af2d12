"""Plans in rounds, for peers that share experts: a stage is one machine that runs rounds."""

"""A whole job on one machine: starts coordinator and agent, and shows what they say."""

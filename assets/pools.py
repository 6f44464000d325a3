"""What only one run may use at a time."""

WAREHOUSE = "duckdb_writer"
"""DuckDB's file: a writer locks out every other process."""

NODE = "training_node"
"""The node's devices: two trainings on them would both crawl or run out of memory."""

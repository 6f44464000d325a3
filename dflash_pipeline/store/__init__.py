"""What is on disk: the DuckDB catalogue, Arrow token shards, Parquet manifests, and files that are whole or absent."""

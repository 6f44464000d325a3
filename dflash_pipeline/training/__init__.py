"""The training op: reads Parquet manifests and mapped Arrow, emits records to a Tracker. Knows no MLflow, no database."""

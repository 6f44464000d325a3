"""From raw conversations to a DFlash drafter that serves. The packages, in the order of the pipeline:

contracts    the nouns: frozen records, valid from construction; numpy only, no I/O
recipe       everything a user may set, from one YAML file
ingest       source files to conversations; conversations to tokens and supervised spans
store        DuckDB catalogue, Arrow token shards, Parquet manifests, atomic files
planning     lengths, bucket boundaries, batching strategies: pure algorithms
model        the DFlash drafter, the frozen target's features, the objective
evaluation   draft-and-verify decoding, acceptance length, export and its proof
training     loader, step, loop, checkpoint, spikes: emits records to a Tracker
tracking     MLflow
launch       torchrun: the process that starts ranks, and the entry each rank runs
assets       Dagster: one call a stage (the folder `assets/` at the top of the repository)
cli          `dflash …`
"""

__version__ = "0.1.0"

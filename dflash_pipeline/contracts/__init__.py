"""The nouns of the pipeline. Where a number lives tells how long it is true:

the run         `BatchingSpec`             rules, and never a count of batches or steps
one epoch       `EpochManifest`            every micro-batch, `num_steps`
across epochs   `RunPlan`                  `total_steps`, positions, fractions

None of them defines `__len__`: samples, batches and steps each have a name.
"""

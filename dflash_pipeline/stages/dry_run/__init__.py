"""What a run would take, before anything is written or any GPU is touched: steps, memory, storage and hours.

lengths    where the lengths come from, and how sure they are
target     a target's size, from its config alone
shapes     the tensors that every micro-batch becomes
memory     what a rank holds in its largest one
room       what lies on disk at the end
hours      how long training takes
estimate   all of it for one recipe
"""

from dflash_pipeline.stages.dry_run.estimate import dry_run

__all__ = ["dry_run"]

"""The last of what is imported in the process that workers are forked from, which itself never trains."""

import gc

import hpsearch.workers.worker  # noqa: F401

gc.collect()
gc.freeze()  # what has been imported is never looked at again, so that forked processes keep sharing it

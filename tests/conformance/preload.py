"""All that a rank of a scenario imports."""

import worker

worker.preload()

"""What jobs have sampled, and what is left of them, when their engine is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onward.engine.events import Decoded, Event
from onward.engine.job import Job
from onward.engines.book import Journal
from onward.sampling.outputs import Sampled


def by_choice(events: list[Event]) -> dict[tuple[int, int], tuple[list[Sampled], str | None]]:
    """Sampled tokens and finish reason by job and choice; checks that nothing follows a finish. NaN, which is not
    equal to itself, becomes +inf, which is not a log-probability."""
    found: dict[tuple[int, int], tuple[list[Sampled], str | None]] = {}
    for event in events:
        if isinstance(event, Decoded):
            tokens, finish = found.get((event.job, event.choice), ([], None))
            assert finish is None
            sampled = [one._replace(logprob=math.inf) if math.isnan(one.logprob) else one for one in event.tokens]
            found[event.job, event.choice] = [*tokens, *sampled], event.finish_reason
    return found


def remaining_jobs(jobs: Sequence[Job], events: Sequence[Event]) -> list[Job]:
    """What another engine has to compute after these events, as whoever resumes jobs finds it out."""
    journals = {job.id: Journal(job) for job in jobs}
    for event in events:
        journals[event.job].record(event)
    return [job for journal in journals.values() if (job := journal.remaining()) is not None]

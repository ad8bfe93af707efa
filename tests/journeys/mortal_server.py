"""`onward serve` that is missed a second after it was killed: `python -m tests.journeys.mortal_server serve …`."""

from __future__ import annotations

from onward.cli.main import main
from onward.service import reservations, team

reservations.DEAD_FACE_MS = 1_000
team.BEAT_MS = 200
team.POLL_SECONDS = 0.1

if __name__ == "__main__":
    main()

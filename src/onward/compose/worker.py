"""`python -m onward.compose.worker`: the process of an engine, which `onward serve` starts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from onward.compose.engine import EngineConfig, drop_loading_pages, kernels_loading, load_models, make_engine
from onward.engines.child.worker import Description, run_worker
from onward.model_files.base import Progress
from onward.model_files.vocabulary import PackedVocabulary
from onward.residency import collect_later, freeze_objects, share_heap, trim_heap
from onward.runtimes.table import import_usual_runtime

if TYPE_CHECKING:
    from onward.engine.client import EngineInfo
    from onward.engine.step import Engine


def load(description: Description, progress: Progress) -> tuple[Engine, EngineInfo]:
    """Load the engine of an encoded EngineConfig and PackedVocabulary. Raises SetupError."""
    with kernels_loading(progress) as kernels_loaded:
        import_usual_runtime()  # while the server finds out which model it is
        config = EngineConfig.decode(description.configuration())
        models = load_models(config, progress)
        kernels_loaded()
    # The server has the tokenizer. Nothing of it is loaded here: for 262,000 tokens that takes seconds and 300 MB.
    engine, info = make_engine(config, models, PackedVocabulary.decode(description.vocabulary()))
    del models
    trim_heap()
    drop_loading_pages(config.all_files())
    freeze_objects()
    return engine, info


def main() -> None:
    """Run until the server stops this process; exits without the interpreter's own end, which has nothing to do."""
    collect_later()
    share_heap()
    status = run_worker(load)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

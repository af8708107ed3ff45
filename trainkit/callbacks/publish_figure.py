"""Hand a figure to whatever keeps figures of a run."""

from pathlib import Path

from lightning.pytorch import Trainer

from trainkit._core.figures import Figure
from trainkit._core.svg import to_svg

__all__ = ["publish_figure"]


def publish_figure(trainer: Trainer, name: str, figure: Figure) -> None:
    """Write ``figure`` as ``figures/NAME.svg`` and ``.json`` into the run folder, on rank zero; all ranks call it."""
    # It is a broadcast: a rank that asked alone would wait for ever.
    folder = trainer.log_dir
    if trainer.is_global_zero and folder is not None:
        path = Path(folder) / "figures" / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_svg(figure), encoding="utf-8")
        path.with_suffix(".json").write_text(figure.to_json(), encoding="utf-8")

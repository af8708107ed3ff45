"""Hand a figure to whatever keeps figures of a run."""

import re
from importlib.util import find_spec
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger

from trainkit._core.checks import reject
from trainkit._core.figures import Figure
from trainkit._core.rasters import to_matplotlib
from trainkit._core.svg import to_svg
from trainkit.callbacks._run_folder import once, run_folder, write_text, writes
from trainkit.callbacks.run_report import RunReport

__all__ = ["publish_figure"]


def publish_figure(trainer: Trainer, name: str, figure: Figure) -> None:
    """Give a figure to the run folder, to the run's report and to the loggers that take pictures.

    Use it in a callback or a module: ``publish_figure(self.trainer, "reliability", metric.figure())``. Rank zero writes
    ``figures/NAME.svg`` and ``figures/NAME.json``, over those of the same name before. Ranks may call it together or
    rank zero alone; nothing is written by ``fast_dev_run`` or the sanity check. TensorBoard, Weights & Biases, MLflow
    and Comet get a picture where the extra ``plots`` is installed; what fails there warns once and ends nothing.

    Args:
        trainer: Trainer of the run.
        name: Name of the figure; in the names of files ``-`` stands for what is no letter, digit, ``_``, ``-`` or dot.
        figure: What is drawn.
    """
    stem = re.sub(r"[^\w.-]+", "-", name).strip(".-")
    if not stem:
        reject("publish_figure", "name", "hold a letter or a digit", name)
    if not writes(trainer) or trainer.sanity_checking:
        return
    svg, folder = to_svg(figure), run_folder(trainer)
    if folder is not None:
        write_text(folder / "figures" / f"{stem}.svg", svg)
        write_text(folder / "figures" / f"{stem}.json", figure.to_json())
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RunReport):
            callback.add_figure(trainer, name, svg)
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):
            _send(trainer, logger, name, stem, figure)


def _send(trainer: Trainer, logger: Logger, name: str, stem: str, figure: Figure) -> None:
    """Give a logger the picture in the way that it offers, if any."""
    kind, step = type(logger).__name__, trainer.global_step
    try:
        experiment: Any = getattr(logger, "experiment", None)
        ways = (
            (logger, "log_image", lambda put, canvas: put(name, [canvas], step=step)),
            (experiment, "add_figure", lambda put, canvas: put(name, canvas, step)),
            (experiment, "log_figure", lambda put, canvas: _log_figure(put, logger, name, stem, canvas, step)),
        )
        put, give = next(((getattr(o, way), give) for o, way, give in ways if hasattr(o, way)), (None, None))
        if put is None or give is None:
            return
        if find_spec("matplotlib") is None:
            once.info(
                f"publish_figure: {kind} gets no pictures, since matplotlib is missing (pip install 'trainkit[plots]');"
                " the figures of this run are SVG files in its folder"
            )
            return
        give(put, to_matplotlib("publish_figure", figure)[0])
    # Loggers raise what they like when their service is out of reach; a picture is no reason to end a training.
    except Exception as error:
        once.warn(f"publish_figure: {kind} took no picture: {type(error).__name__}: {error}")


def _log_figure(put: Any, logger: Any, name: str, stem: str, canvas: Any, step: int) -> None:
    """The call of that name: a client of MLflow asks for the run, an experiment of Comet is one."""
    if hasattr(logger, "run_id"):
        put(logger.run_id, canvas, f"figures/{stem}-{step}.png")
    else:
        put(figure_name=name, figure=canvas, step=step)

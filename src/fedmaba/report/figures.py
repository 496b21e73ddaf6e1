"""Figures in print quality with matplotlib (extra `plot`): the page's, and those papers show.

Drawn without pyplot, so that nothing global changes; the same colours as the page. Each kind is a
function of line_figures.py or client_figures.py. No torch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError, unknown
from fedmaba.report import client_figures, data, line_figures
from fedmaba.report.plot_data import HALF, INK, LINE, SOFT, WIDE, PlotData
from fedmaba.results import run_folder
from fedmaba.results.history import History, Model

FORMS = (".pdf", ".svg", ".png")
STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "text.usetex": False,  # a name is no program
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text, as journals ask
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmaba",
    "figure.constrained_layout.use": True,
}
KINDS: dict[str, tuple[Callable[[Any, PlotData], None], tuple[float, float]]] = {
    "distribution": (client_figures.distribution, (WIDE, 2.9)),
    "tradeoff": (client_figures.tradeoff, (HALF * 1.4, HALF * 1.1)),
    "rounds": (line_figures.rounds, (WIDE, 4.6)),
    "variance": (line_figures.variance, (HALF, 2.6)),
    "accuracy": (line_figures.accuracy, (HALF, 2.6)),
    "worst": (line_figures.worst, (HALF, 2.6)),
    "weights": (client_figures.weights, (WIDE, 2.4)),
    "constraint": (line_figures.constraint, (WIDE, 2.4)),
    "gains": (client_figures.gains, (WIDE, 2.4)),
    "heterogeneity": (client_figures.heterogeneity, (WIDE, 2.4)),
}


def describe() -> list[tuple[str, str]]:
    """Every kind of figure and one line on it."""
    return [(name, (draw.__doc__ or "").strip()) for name, (draw, _) in KINDS.items()]


def write(
    kind: str,
    folders: Sequence[Path],
    out: Path,
    model: Model = "deployed",
    share: float | None = None,
) -> None:
    """One figure of one or more run folders as a file."""
    if out.suffix.lower() not in FORMS:
        raise InputError(f"{out}: the name says the form: end it in {', '.join(FORMS)}")
    _check(kind)
    figure = draw(data.load_all(folders), kind, model, share)
    content = encode(figure, out.suffix.lower())
    run_folder.write_file(out, content, remedy="fix it, or choose another -o")


def draw(
    sources: Sequence[data.Source],
    kind: str,
    model: Model = "deployed",
    share: float | None = None,
    size: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Any:
    """One figure as a matplotlib Figure that notebooks show by themselves."""
    _check(kind)
    drawing, usual = KINDS[kind]
    with _style():
        figure = _canvas(size or usual)
        plot = PlotData(sources, model, share, smooth)
        if not any("evaluated" in run.tables for run in plot.runs):
            if all(run.diverged for run in plot.runs):
                raise InputError("every run diverged before its first evaluation: lower train.lr")
            raise InputError("no run has been evaluated yet: wait for the first evaluation")
        drawing(figure, plot)
    return figure


def of(
    history: History,
    kind: str = "rounds",
    model: Model = "deployed",
    size: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Any:
    """A figure of a history in memory; lines over rounds are means of the last `smooth` points."""
    return draw([data.of(history)], kind, model, size=size, smooth=smooth)


def sweep(
    history: History,
    parameter: str,
    values: dict[str, float],
    names: tuple[str, str],
    model: Model,
) -> Any:
    """Figures at the last round against a hyper-parameter of a strategy, beside the reference."""
    with _style():
        figure = _canvas((WIDE, 2.4))
        line_figures.sweep(figure, history, parameter, values, model, names)
    return figure


def encode(figure: Any, form: str) -> bytes:
    """A figure as the bytes of a .pdf, .svg or .png file, the same each time."""
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}
    stream = io.BytesIO()
    with _style():
        figure.savefig(stream, format=form[1:], metadata=metadata[form])
    return stream.getvalue()


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise unknown("figure", kind, KINDS)


@contextmanager
def _style() -> Iterator[None]:
    """Our own settings and no others: a `matplotlibrc` in the working folder could start LaTeX."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(
            "figures want matplotlib: in a clone of fedmaba, pip install '.[plot]'"
        ) from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _canvas(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc,unused-ignore]
        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=150)
            return stream.getvalue()

    figure = Picture(figsize=size)
    FigureCanvasAgg(figure)
    return figure

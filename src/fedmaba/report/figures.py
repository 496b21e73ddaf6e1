"""Figures in print quality with matplotlib (extra `plot`): the page's, and those papers show.

Drawn without pyplot, so that nothing global changes; the same colours as the page. Each kind is a
function of line_figures.py, client_figures.py or rank_figure.py. No torch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedmaba.errors import InputError, installed, unknown
from fedmaba.report import client_figures, data, line_figures, rank_figure
from fedmaba.report.escape import one_line
from fedmaba.report.plot_data import COLORS, HALF_PAGE, INK, LINE_COLOUR, SOFT, WIDE, PlotData
from fedmaba.report.row_styles import printed_name
from fedmaba.report.table import capitalised, caption
from fedmaba.results import run_folder
from fedmaba.results.history import History
from fedmaba.results.run_history import Model

Width = Literal["column", "page"]
Font = Literal["sans", "serif"]
FILE_ENDINGS = (".pdf", ".svg", ".png")
FIGURE_STYLE = {
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
    # Lines that have no style of their own take these colours.
    "axes.prop_cycle": f"cycler('color', {[*COLORS[1:]]})",
    "grid.color": LINE_COLOUR,
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
FONTS: dict[str, dict[str, Any]] = {  # all come with matplotlib
    "sans": {"font.family": "sans-serif"},
    "serif": {"font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 9},
}
WIDTHS = {"column": HALF_PAGE, "page": WIDE}
KINDS: dict[str, tuple[Callable[[Any, PlotData], None], tuple[float, float]]] = {
    "distribution": (client_figures.distribution, (WIDE, 2.9)),
    "tradeoff": (client_figures.tradeoff, (HALF_PAGE * 1.4, HALF_PAGE * 1.1)),
    "rounds": (line_figures.rounds, (WIDE, 4.6)),
    "variance": (line_figures.variance, (HALF_PAGE, 2.6)),
    "accuracy": (line_figures.accuracy, (HALF_PAGE, 2.6)),
    "worst": (line_figures.worst, (HALF_PAGE, 2.6)),
    "bytes": (line_figures.over_bytes, (WIDE, 2.6)),
    "hours": (line_figures.over_hours, (WIDE, 2.6)),
    "weights": (client_figures.weights, (WIDE, 2.4)),
    "constraint": (line_figures.constraint, (WIDE, 2.4)),
    "ranks": (rank_figure.mean_ranks, (WIDE, 3.6)),
    "gains": (client_figures.gains, (WIDE, 2.4)),
    "incentive": (client_figures.incentive, (WIDE, 2.4)),
    "turns": (client_figures.turns, (WIDE, 2.4)),
    "heterogeneity": (client_figures.heterogeneity, (WIDE, 2.4)),
}


def describe() -> list[tuple[str, str]]:
    """Every kind of figure and one line on it."""
    return [(name, (draw.__doc__ or "").strip()) for name, (draw, _) in KINDS.items()]


def write_figure(
    kind: str,
    folders: Sequence[Path],
    out: Path,
    model: Model = "deployed",
    share: float | None = None,
    width: Width | None = None,
    font: Font = "sans",
    load: Callable[[Sequence[Path]], list[data.Source]] = data.load_all,
) -> list[Path]:
    """One figure of one or more run folders as a file, and its caption as a text beside it."""
    if out.suffix.lower() not in FILE_ENDINGS:
        raise InputError(f"{out}: the name says the form: end it in {', '.join(FILE_ENDINGS)}")
    _check(kind)
    sources, remedy = load(folders), "fix it, or choose another -o"
    figure = draw(sources, kind, model, share, width=width, font=font)
    content = encode(figure, out.suffix.lower(), outlines=True, font=font)
    beside = out.with_suffix(".caption.txt")
    run_folder.write_file(out, content, remedy=remedy)
    told = f"{caption_of(sources, kind, model)}\n".encode()
    run_folder.write_file(beside, told, remedy=remedy)
    return [out, beside]


def caption_of(sources: Sequence[data.Source], kind: str, model: Model) -> str:
    """What a figure shows, for the line below it in a paper."""
    history = data.combine(sources)
    what = (KINDS[kind][0].__doc__ or "").strip()
    seeds = len({run.seed for run in history.runs})
    clients = sorted({run.n_clients for run in history.runs if run.n_clients})
    rounds = max(int(run.evaluated[-1]) for run in history.runs if "evaluated" in run.tables)
    names = [printed_name(label) for label in dict.fromkeys(run.label for run in history.runs)]
    data_names = ", ".join(dict.fromkeys(str(s.data.get("name") or s.name) for s in sources))
    shown = caption(history, model, "last").partition(", at the last round")[0]
    over = f"{seeds} seed{'s' if seeds != 1 else ''}"
    some = ", ".join(f"{n:,}" for n in clients)
    return one_line(
        f"{capitalised(what)}. {capitalised(shown)} on {data_names}; {some} clients, {rounds:,} "
        f"rounds, {over}. {'; '.join(names)}."
    )


def draw(
    sources: Sequence[data.Source],
    kind: str,
    model: Model = "deployed",
    share: float | None = None,
    size: tuple[float, float] | None = None,
    smooth: int = 1,
    width: Width | None = None,
    font: Font = "sans",
) -> Any:
    """One figure as a matplotlib Figure that notebooks show by themselves."""
    _check(kind)
    drawing, usual = KINDS[kind]
    if width:
        usual = WIDTHS[width], usual[1]
    with style(font):
        figure = canvas(size or usual)
        plot = PlotData(sources, model, share, smooth)
        if not any("evaluated" in run.tables for run in plot.runs):
            if all(run.diverged for run in plot.runs):
                if any(run.ended != "diverged" for run in plot.runs):
                    raise InputError("every run ended early: nobody answered: raise --available")
                raise InputError("every run diverged before its first evaluation: lower train.lr")
            raise InputError("no run has been evaluated yet: wait for the first evaluation")
        drawing(figure, plot)
    return figure


def figure_of(
    history: History,
    kind: str = "rounds",
    model: Model = "deployed",
    size: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Any:
    """A figure of a history in memory; lines over rounds are means of the last `smooth` points."""
    return draw([data.source_of(history)], kind, model, size=size, smooth=smooth)


def encode(figure: Any, form: str, outlines: bool = False, font: Font = "sans") -> bytes:
    """A figure as the bytes of a .pdf, .svg or .png file, the same each time.

    PDF files carry their fonts; `outlines` draws the letters of an SVG, which then needs none.
    """
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}
    stream = io.BytesIO()
    with style(font) as settings:
        settings["svg.fonttype"] = "path" if outlines else "none"
        figure.savefig(stream, format=form[1:], metadata=metadata[form])
    return stream.getvalue()


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise unknown("figure", kind, KINDS)


@contextmanager
def style(font: Font = "sans") -> Iterator[Any]:
    """Our own settings and no others: a `matplotlibrc` in the working folder could start LaTeX."""
    with installed("figures want matplotlib: in a clone of fedmaba, pip install '.[plot]'"):
        import matplotlib
    if font not in FONTS:
        raise unknown("font", font, FONTS)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(FIGURE_STYLE | FONTS[font])
        yield matplotlib.rcParams


def canvas(size: tuple[float, float]) -> Any:
    """An empty figure of that size in inches, drawn without pyplot."""
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

"""Who shows histories, and who reads what is no plain run folder: rooms above this one.

Results name no room above them. The package itself, which names them all, says who does it, and
their modules are imported when a history is first shown or read. Nothing is imported here:
`python -m fedmaba` would look for it in the working folder first. No torch.
"""

TYPE_CHECKING = False  # as type checkers know it, without `typing`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

views: "Callable[[], Any]"  # the module that shows histories and runs
reader: "Callable[[], Any]"  # the module that reads folders with parts, and other results

"""The laboratory is tested with the fixtures of the package's tests."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

spec = spec_from_file_location(
    "package_conftest", Path(__file__).parents[2] / "tests" / "conftest.py"
)
package = module_from_spec(spec)
spec.loader.exec_module(package)
globals().update({name: it for name, it in vars(package).items() if not name.startswith("_")})

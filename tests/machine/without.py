"""Run rlinf, or import modules, as if some packages were not installed.

without.py torch,ray doctor
without.py torch,ray -m a b c
"""

import importlib
import importlib.abc
import sys


class Without(importlib.abc.MetaPathFinder):
    """A finder that hides some packages from another finder."""

    def __init__(self, finder, absent):
        self.finder, self.absent = finder, absent

    def find_spec(self, name, path=None, target=None):
        return (
            None
            if name.partition(".")[0] in self.absent
            else self.finder.find_spec(name, path, target)
        )

    def find_distributions(self, *context):
        find = getattr(self.finder, "find_distributions", None)  # importlib.metadata asks here
        return find(*context) if find else ()


def main():
    absent = sys.argv[1].split(",")
    sys.meta_path[:] = [
        Without(finder, absent) for finder in sys.meta_path if hasattr(finder, "find_spec")
    ]
    if sys.argv[2] == "-m":
        for module in sys.argv[3:]:
            try:
                importlib.import_module(module)
                print(f"{module}: imported")
            except Exception as error:
                print(f"{module}: {error!r}")
        return 0
    from rlinf_core.cli.main import main as rlinf

    return rlinf(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

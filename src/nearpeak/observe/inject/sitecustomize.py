"""Runs at the start of every Python process of an attached command. Imports nothing that the process would not.

It waits for the modules named in the settings, and calls our functions once one of them has been imported. It stands
in front of a sitecustomize that the process may have of its own, so it runs that one too.

The command may run in an environment that has no nearpeak: then it is loaded from where this file stands, and nothing
else of ours comes with it.
"""

import json
import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

VARIABLE = "NEARPEAK_ATTACH"


def _warn(text):
    print(f"nearpeak: {text}; this process goes on without it.", file=sys.stderr)  # noqa: T201


class Hooks:
    """A finder that finds nothing itself: it calls a function when a module has been executed."""

    def __init__(self, functions):
        self.waiting = dict(functions)

    def find_spec(self, name, path=None, target=None):
        """Hand on what the other finders find, prepared to call the function afterwards. Libraries also ask whether a
        module could be imported, and leave it at that: so the function waits until one has been."""
        if name not in self.waiting:
            return None
        spec = _spec_of_others(self, name, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            _call_after(spec.loader, self)
        return spec

    def imported(self, module):
        """A module that we waited for, or another one, has been executed."""
        function = self.waiting.pop(module.__name__, None)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        if function is not None:
            call(function, module)


def _spec_of_others(hooks, name, path, target):
    for finder in list(sys.meta_path):
        spec = finder.find_spec(name, path, target) if finder is not hooks and hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


def _call_after(loader, hooks):
    """A loader serves one module: replacing the method on the instance touches no other."""
    execute = loader.exec_module

    def execute_and_call(module):
        execute(module)
        hooks.imported(module)

    loader.exec_module = execute_and_call


def _find_ourselves():
    """Not by a path of ours in sys.path: what else stands there would be found as well."""
    if "nearpeak" in sys.modules or PathFinder.find_spec("nearpeak") is not None:
        return
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec = spec_from_file_location("nearpeak", os.path.join(home, "__init__.py"), submodule_search_locations=[home])
    if spec is None or spec.loader is None:
        return
    package = module_from_spec(spec)
    sys.modules["nearpeak"] = package
    spec.loader.exec_module(package)


def call(functions, module):
    """Call one function of ours, or several."""
    for function in [functions] if isinstance(functions, str) else functions:
        _call(function, module)


def _call(function, module):
    """The one boundary: nothing of ours may be the reason that a script fails."""
    try:
        _find_ourselves()
        home, _, name = function.partition(":")
        getattr(import_module(home), name)(module)
    except Exception as error:  # noqa: BLE001  the one boundary
        _warn(f"could not attach to {module.__name__} ({type(error).__name__}: {error})")


def attach():
    """Wait for the modules that the settings name; for those already there, act now."""
    try:
        functions = json.loads(os.environ[VARIABLE])["hooks"]
        present = [name for name in functions if name in sys.modules]
        missing = {name: functions[name] for name in functions if name not in present}
    except Exception as error:  # noqa: BLE001  as above
        _warn(f"{VARIABLE} cannot be read ({type(error).__name__}: {error})")
        return
    for name in present:
        call(functions[name], sys.modules[name])
    if missing:
        sys.meta_path.insert(0, Hooks(missing))


def run_shadowed():
    """Run the sitecustomize that would have run without us, under its own name."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        attach()
    run_shadowed()

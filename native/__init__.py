"""The C core behind Python: one module for each header of this folder.

``native.digest``, ``native.frame``, ``native.link``, ``native.engine``,
``native.journal``, ``native.store``, ``native.latest``, ``native.batch`` (with ``columns``
and ``route``) and ``native.compacted`` (with ``origins``) wrap the header of the same name;
nothing outside this package touches the generated module. A header is where layouts, rules and
ownership are written down.
"""

from pkgutil import extend_path

# A script that starts in a clone imports these sources even if quire is installed elsewhere, and
# only the installed package holds the compiled core: look for it there too.
__path__ = extend_path(__path__, __name__)

try:
    from native import _core as _core
except ImportError as missing:
    raise ImportError(
        "the C core is not built: run `pip install .` or `pip install -e .` in quire's folder "
        "(needs a C compiler and the Python headers)"
    ) from missing

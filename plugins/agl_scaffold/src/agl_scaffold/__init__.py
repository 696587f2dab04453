"""Create a new plugin package; the code behind ``agl plugins new``.

Each folder of ``templates`` holds the files of one kind, and ``common`` those of all kinds. A
package of its own has those of ``standalone``, too, and one that is written into this project's
repository those of ``checkout``. A kind's file replaces a file of the same path. The templates are
the files of a working plugin with placeholders such as ``$name`` (:class:`PluginName`).
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

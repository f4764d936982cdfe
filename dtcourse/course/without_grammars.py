"""Importing this leaves out what takes nine tenths of nbformat's import and is never asked for.

nbformat imports jsonschema, which builds 38 parsers of international addresses (rfc3987-syntax, which jupyter-events
asks for) and would use them where a schema asks for such an address. That of notebooks does not. jsonschema does
without where the package is missing. The suite has it as a plugin of pytest, before nbval's.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

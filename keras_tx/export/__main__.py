"""`python -m keras_tx.export REQUEST`: the process that `rebuild.write_elsewhere` starts.

No command for people: REQUEST is a file that one writes.
"""

import sys
import traceback

from keras_tx.export.rebuild import REFUSED, rebuild

try:
    rebuild(sys.argv[1])
except ValueError:
    traceback.print_exc()
    sys.exit(REFUSED)
